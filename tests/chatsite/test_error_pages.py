"""Errors that no view answers, in the shape of each API."""

import pytest
from django.test import Client, RequestFactory

from chatsite.error_pages import server_error


def test_unknown_address() -> None:
    found = Client().get("/api/v1/nothing")
    assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found")
    page = Client().get("/nothing")
    assert page.status_code == 404 and page["Content-Type"].startswith("text/html")


def test_unknown_host() -> None:
    found = Client(raise_request_exception=False).get("/api/v1/me", headers={"host": "evil.example"})
    assert (found.status_code, found.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(("path", "has_type"), [("/api/v1/me", False), ("/v1/models", True)])
def test_error_of_ours(path: str, has_type: bool) -> None:
    found = server_error(RequestFactory().get(path))
    assert found.status_code == 500 and b'"internal"' in found.content
    assert (b'"type"' in found.content) == has_type
