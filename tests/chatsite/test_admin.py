"""The admin: pages load and show nothing of what people write; actions go through operations."""

from typing import Any
from uuid import uuid4

import pytest
from allauth.account.models import EmailAddress
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from billing.models import LedgerEntry, User
from billing.operations import Principal, create_user
from conversations import operations
from inference.models import Generation, ServedModel
from tests.conftest import client_of


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(create_user(email="root@example.org", password="tall-trees-7", is_superuser=True))
    return client


@pytest.fixture
def clerk(db: None) -> Client:
    """May see every row and change none, and read nothing of what people write."""
    user = create_user(email="clerk@example.org", password="tall-trees-7")
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_").exclude(codename="view_content"))
    client = Client()
    client.force_login(User.objects.get(pk=user.pk))
    return client


@pytest.fixture
def sent(user: User, echo_model: ServedModel) -> operations.Sent:
    conversation = operations.start(user=user, title="Secret title", system_prompt="Secret rules")
    return operations.send(principal=Principal(user), conversation_id=conversation.pk, content="Secret words")


@pytest.mark.parametrize("model", admin.site._registry, ids=lambda model: model.__name__)
def test_lists_and_searches(model: type, operator: Client, sent: operations.Sent) -> None:
    url = reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")  # type: ignore[attr-defined]
    for query in ("", "?q=x", f"?q={uuid4()}"):
        page = operator.get(url + query)
        assert page.status_code == 200 and b"Secret" not in page.content


@pytest.mark.parametrize("name", ["conversation", "generation"])
def test_details_show_no_content(name: str, operator: Client, sent: operations.Sent) -> None:
    target = getattr(sent, name)
    page = operator.get(page_of(target))
    assert page.status_code == 200 and b"Secret" not in page.content


def page_of(target: Any) -> str:
    return reverse(f"admin:{target._meta.label_lower.replace('.', '_')}_change", args=[target.pk])


def list_of(model: Any) -> str:
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")


def act(client: Client, action: str, *rows: Any) -> int:
    """Choose rows in their list and run an action on them."""
    fields = {"action": action, "_selected_action": [str(row.pk) for row in rows]}
    return client.post(list_of(rows[0]), fields).status_code


def test_content_takes_its_own_permission_and_is_logged(operator: Client, clerk: Client, sent: operations.Sent) -> None:
    page = page_of(sent.conversation)
    assert b"?content=1" not in clerk.get(page).content
    assert clerk.get(page + "?content=1").status_code == 403
    assert not LogEntry.objects.exists()
    assert b"?content=1" in operator.get(page).content
    content = operator.get(page + "?content=1").content
    assert all(word in content for word in (b"Secret title", b"Secret rules", b"Secret words"))
    entry = LogEntry.objects.get()
    assert (entry.user.email, entry.object_id) == ("root@example.org", str(sent.conversation.pk))


def test_content_is_inert(operator: Client, principal: Principal, echo_model: ServedModel) -> None:
    """Case 40."""
    attack = "<img src=x onerror=alert(1)>"
    chat = operations.start(user=principal.user, title=attack, system_prompt=attack)
    operations.send(principal=principal, conversation_id=chat.pk, content=attack)
    assert b"<img src=x" not in operator.get(page_of(chat) + "?content=1").content


def test_accounts_are_closed_and_opened(operator: Client, user: User) -> None:
    root = User.objects.get(email="root@example.org")
    api = client_of(user)
    assert act(operator, "deactivate", user, root) == 302
    assert list(User.objects.order_by("email").values_list("email", "is_active")) == [
        ("root@example.org", True),
        ("user@example.org", False),
    ]
    assert api.get("/api/v1/me").status_code == 401
    act(operator, "activate", user)
    assert api.get("/api/v1/me").status_code == 200


def test_keys_are_revoked(operator: Client, user: User) -> None:
    api = client_of(user)
    assert act(operator, "revoke", user.api_keys.get()) == 302
    assert api.get("/api/v1/me").status_code == 401


def test_generations_are_stopped(operator: Client, sent: operations.Sent) -> None:
    assert act(operator, "stop", sent.generation) == 302
    sent.generation.refresh_from_db()
    assert sent.generation.status == "CANCELLED"
    assert LedgerEntry.objects.get().generation_id == sent.generation.pk


def test_the_newest_generation_is_first(operator: Client, principal: Principal, echo_model: ServedModel) -> None:
    chats = [operations.start(user=principal.user) for _ in range(4)]
    sent = [operations.send(principal=principal, conversation_id=chat.pk, content="Hi").generation for chat in chats]
    page = operator.get(reverse("admin:inference_generation_changelist"))
    assert list(page.context["cl"].result_list) == sent[::-1]


def test_who_may_only_look_may_not_act(clerk: Client, user: User, sent: operations.Sent) -> None:
    client_of(user)
    for action, row in (("deactivate", user), ("revoke", user.api_keys.get()), ("stop", sent.generation)):
        act(clerk, action, row)
    assert User.objects.get(pk=user.pk).is_active and user.api_keys.get().revoked_at is None
    sent.generation.refresh_from_db()
    assert sent.generation.status == "WAITING"


def test_rows_of_a_deleted_account_stay_in_sight(operator: Client, user: User, sent: operations.Sent) -> None:
    user_id = str(user.pk).encode()
    operations.delete_account(user=user)
    for model in (Generation, LedgerEntry):
        page = operator.get(list_of(model))
        assert user_id in page.content
    assert operator.get(page_of(sent.generation)).status_code == 200


def test_a_changed_address_closes_the_old_one(operator: Client, user: User) -> None:
    EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=True)
    page = operator.get(page_of(user))
    fields = {name: value for name, value in page.context["adminform"].form.initial.items() if value is not None}
    fields |= {"email": "New@Example.org", "groups": [], "user_permissions": []}
    fields |= {"override-TOTAL_FORMS": "0", "override-INITIAL_FORMS": "0"}
    assert operator.post(page_of(user), fields).status_code == 302
    assert User.objects.get(pk=user.pk).email == "new@example.org"
    assert not EmailAddress.objects.exists()
    assert not Client().login(email="user@example.org", password="tall-trees-7")


@pytest.mark.parametrize("query", ["?q=%00", "?q=%ff", "?q=x'", "?user__id__exact=x", "?o=99", "?created_at__day=x"])
@pytest.mark.parametrize("model", [User, Generation, LedgerEntry], ids=lambda model: model.__name__)
def test_garbage_in_a_search_is_no_error(model: Any, query: str, operator: Client) -> None:
    """Case 25."""
    operator.raise_request_exception = False
    assert operator.get(list_of(model) + query).status_code < 500


def test_ledger_is_read_only(operator: Client, user: User) -> None:
    entry = LedgerEntry.objects.create(
        generation_id=uuid4(),
        user_id=user.pk,
        organization_id=user.organization_id,
        model="m",
        purpose="chat",
        prompt_tokens=1,
        completion_tokens=1,
        finish_reason="stop",
    )
    change = reverse("admin:billing_ledgerentry_change", args=[entry.pk])
    assert operator.get(change).status_code == 200
    assert operator.post(change, {"prompt_tokens": 0}).status_code == 403
    assert operator.post(reverse("admin:billing_ledgerentry_delete", args=[entry.pk])).status_code == 403
    assert operator.get(reverse("admin:billing_ledgerentry_add")).status_code == 403


def test_account_is_made_and_changed(operator: Client, user: User) -> None:
    form = operator.get(reverse("admin:billing_user_add"))
    assert form.status_code == 200 and b'name="plan"' in form.content
    fields = {"email": "new@example.org", "organization": user.organization_id, "plan": user.plan_id}
    fields |= {"password1": "tall-trees-7", "password2": "tall-trees-7"}
    assert operator.post(reverse("admin:billing_user_add"), fields).status_code == 302
    made = User.objects.get(email="new@example.org")
    assert made.check_password("tall-trees-7")
    assert operator.get(reverse("admin:billing_user_change", args=[made.pk])).status_code == 200
