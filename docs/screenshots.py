"""`make screenshots`: the main pages at 1280 and 390 px, light and dark, into docs/screenshots/.

Runs a site of its own with the echo engine, fills it, and looks at it with Chromium (on PATH).
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from bench.site import Site

FOLDER = Path(__file__).parent / "screenshots"
EMAIL, PASSWORD = "ada@example.org", "tall-trees-and-hills-7"
SIZES = {1280: {"width": 1280, "height": 800}, 390: {"width": 390, "height": 844}}

ANSWER = """Both walk the list once, but they keep different things:

| | list | generator |
|---|---|---|
| memory | all items | one item |
| read again | yes | no |

```python
def squares(n: int) -> Iterator[int]:
    for i in range(n):
        yield i * i          # one at a time

total = sum(squares(10_000_000))
```

1. Use a **generator** when you read the items once.
2. Use a **list** when you need `len()`, an index, or a second pass.

> A generator expression reads just like a list comprehension, in round brackets."""

FILL = f"""
import datetime
from django.utils import timezone
from billing.operations import create_user
from conversations.models import Conversation, Message
user = create_user(email={EMAIL!r}, password={PASSWORD!r})
now = timezone.now()
def chat(title, hours, turns=()):
    at = now - datetime.timedelta(hours=hours)
    found = Conversation.objects.create(user=user, title=title, model_version="echo", updated_at=at)
    parent = None
    for n, (role, text) in enumerate(turns):
        ended = "stop" if role == "assistant" else None
        parent = Message.objects.create(
            conversation=found, parent=parent, sender_role=role, content=text, finish_reason=ended,
            model="echo", created_at=at + datetime.timedelta(seconds=n),
        )
    return found
made = chat("Lists and generators", 0, [
    ("user", "When should I use a generator instead of a list in Python?"), ("assistant", {ANSWER!r}),
])
chat("Train to Lugano on Friday", 2)
chat("A letter to the landlord about the heating", 5)
chat("Names for a sailing boat", 26)
chat("Sourdough that does not rise", 30)
chat("Why is the sky blue?", 80)
chat("SQL: running totals", 120)
chat("Reading list for the summer", 400)
chat("Explaining tides to a child", 900)
print("made", made.pk)
"""

FILL_USAGE = f"""
import datetime, random
from uuid import uuid4
from django.utils import timezone
from billing.models import LedgerEntry, User
from billing.operations import create_user, issue_key
ada = User.objects.get(email={EMAIL!r})
people = [ada]
for name in ("grace", "alan", "barbara"):
    person = create_user(email=name + "@example.org", password={PASSWORD!r})
    User.objects.filter(pk=person.pk).update(organization=ada.organization)
    people.append(person)
key, _ = issue_key(user=ada, name="laptop")
chance, now, made = random.Random(5), timezone.now(), []
for n in range(900):
    person = chance.choice(people)
    model = chance.choice(["qwen3-8b", "qwen3-8b", "smollm2-135m-instruct", "llama-3-70b"])
    prompt, answer = chance.randrange(100, 4000), chance.randrange(50, 900)
    made.append(LedgerEntry(
        generation_id=uuid4(), user_id=person.pk, organization_id=ada.organization_id, model=model, purpose="chat",
        api_key_id=key.pk if person == ada and chance.random() < 0.3 else None, prompt_tokens=prompt,
        cached_tokens=prompt // 3, completion_tokens=answer, finish_reason="stop", cost_micro=prompt // 4 + 2 * answer,
        created_at=now - datetime.timedelta(hours=2 + chance.triangular(0, 700, 100)),
    ))
for n in range(14):
    made.append(LedgerEntry(
        generation_id=uuid4(), user_id=ada.pk, organization_id=ada.organization_id, model="qwen3-8b", purpose="chat",
        prompt_tokens=1500, completion_tokens=400, finish_reason="stop", cost_micro=1200,
        created_at=now - datetime.timedelta(minutes=9 * n),
    ))
LedgerEntry.objects.bulk_create(made)
"""


def log_in(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/accounts/login/")
    page.get_by_label("Email").fill(EMAIL)
    page.locator("input[type=password]").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.url}/")


def shoot(page: Page, name: str, width: int, scheme: str) -> None:
    page.wait_for_timeout(400)  # colours of code, the drawer's movement
    page.screenshot(path=FOLDER / f"{name}-{width}-{scheme}.png")


def visit(browser: Browser, site: Site, chat: str, width: int, scheme: str) -> None:
    """Every page once, at one width and in one colour scheme."""
    context = browser.new_context(viewport=SIZES[width], color_scheme=scheme, has_touch=width < 500)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{site.url}/accounts/login/")
    shoot(page, "login", width, scheme)
    log_in(page, site)
    shoot(page, "new", width, scheme)
    for name, path in (("chat", f"/c/{chat}"), ("settings", "/settings/"), ("keys", "/settings/keys/")):
        page.goto(site.url + path)
        shoot(page, name, width, scheme)
    page.goto(f"{site.url}/settings/usage/")
    height = page.locator(".page").evaluate("page => page.scrollHeight")  # all of it, which scrolls in its column
    page.set_viewport_size({"width": width, "height": height + 100})
    shoot(page, "usage", width, scheme)
    page.set_viewport_size(SIZES[width])  # type: ignore[arg-type]
    page.goto(f"{site.url}/c/{chat}")
    if width < 500:
        page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_role("button", name="Options of Lists").click()
    shoot(page, "menu", width, scheme)
    page.goto(f"{site.url}/missing")
    shoot(page, "missing", width, scheme)
    page.goto(f"{site.url}/")
    page.fill("#prompt", "Why are there tides? [[itl=60 text=The Moon pulls on the sea, and the sea follows.]]")
    page.keyboard.press("Enter")
    page.get_by_text("The Moon").last.wait_for()
    shoot(page, "streaming", width, scheme)
    context.close()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("Chromium is missing.")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with Site(engine="echo", slots=8) as site, sync_playwright() as playwright:
        chat = site.manage("shell", "-v", "0", "-c", FILL).split("made ")[-1].strip()
        site.manage("shell", "-v", "0", "-c", FILL_USAGE)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width in SIZES:
            for scheme in ("light", "dark"):
                visit(browser, site, chat, width, scheme)
        browser.close()


if __name__ == "__main__":
    main()
