"""The OpenAPI schema and its page."""

import re
from io import StringIO

from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client


def test_schema_is_valid_and_complete() -> None:
    out = StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    chat = "conversations/{conversation_id}"
    for path in ("conversations", f"{chat}/messages", f"{chat}/stream", "keys/{key_id}", "models", "usage"):
        assert f"\n  /api/v1/{path}:\n" in out.getvalue()


def test_pages_need_nothing_from_elsewhere() -> None:
    client = Client()
    page = client.get("/api/docs/").content.decode()
    script = client.get("/api/docs/?script=").content.decode()
    assert "SwaggerUIBundle" in script
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) >= 4
    for asset in assets:
        assert asset.startswith("/"), asset
        if asset.startswith("/static/"):
            assert finders.find(asset.removeprefix("/static/"))
    assert "https://" not in page + script
    assert client.get("/api/schema/").status_code == 200
