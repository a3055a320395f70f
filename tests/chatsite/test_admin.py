"""The admin's pages load, and show nothing of what people write."""

from uuid import uuid4

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from billing.models import LedgerEntry, User
from billing.operations import Principal, create_user
from conversations import operations
from inference.models import ServedModel


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(create_user(email="root@example.org", password="tall-trees-7", is_superuser=True))
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
    page = operator.get(reverse(f"admin:{target._meta.label_lower.replace('.', '_')}_change", args=[target.pk]))
    assert page.status_code == 200 and b"Secret" not in page.content


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
