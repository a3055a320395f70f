"""/api/v1/keys and /api/v1/me."""

from rest_framework.test import APIClient

from billing.models import ApiKey, User


def test_secret_is_shown_once_and_works(api: APIClient) -> None:
    made = api.post("/api/v1/keys", {"name": "laptop"}, format="json")
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith(made.json()["hint"]) and len(made.json()["hint"]) < 15
    listed = api.get("/api/v1/keys")
    assert [key["name"] for key in listed.json()["items"]] == ["laptop", "test"]
    assert secret.encode() not in listed.content
    other = APIClient()
    other.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert other.get("/api/v1/me").status_code == 200
    assert ApiKey.objects.get(name="laptop").last_used_at is not None


def test_revoked_key_stops_working(api: APIClient) -> None:
    made = api.post("/api/v1/keys", {"name": "laptop"}, format="json").json()
    for _ in range(2):
        assert api.delete(f"/api/v1/keys/{made['id']}").status_code == 204
    other = APIClient()
    other.credentials(HTTP_AUTHORIZATION=f"Bearer {made['secret']}")
    refused = other.get("/api/v1/me")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_bad_names(api: APIClient) -> None:
    for name in ("", "  ", "x" * 101):
        assert api.post("/api/v1/keys", {"name": name}, format="json").json()["error"]["param"] == "name"


def test_me(api: APIClient, user: User) -> None:
    me = api.get("/api/v1/me").json()
    assert (me["email"], me["plan"]["slug"], me["is_staff"]) == (user.email, "free", False)
    assert me["organization"] == str(user.organization_id)
