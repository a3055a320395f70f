"""The answer's text: the same live and saved, never moved once finished, and inert (case 40)."""

import pytest
from playwright.sync_api import expect

from tests.browser.pages import ChatPage
from tests.people import Person

MARKDOWN = """# Fibonacci

Each is the *sum* of the **two** before, see <https://example.org/fib> or https://example.org/more.

```python
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
```

| n | fib |
|--:|:---:|
| 10 | 55 |

1. one
   - inner

     ```js
     let x = 1;
     ```
2. two ~~three~~

> quoted `code`

![picture](https://example.org/p.png) [relative](/c/1) [mail](mailto:a@example.org)

End 👩‍👩‍👧‍👦 of it."""

NASTY = """<img src=x onerror="window.hit=1"> <script>window.hit=1</script> <svg onload="window.hit=1"></svg>

[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](data:text/html,<script>window.hit=1</script>)

![d](javascript:window.hit=1) ![e](x" onerror="window.hit=1) <a href="vbscript:x">f</a>
[g](https://e.org "t\\" onclick=x")

```html"onmouseover="window.hit=1
<b onclick="window.hit=1">
```

<div style="position:fixed">covered</div> [h](//example.org/x) &lt;script&gt;"""

# The markup without what scripts add, and with attributes in one order.
MARKUP = """root => {
  const copy = root.cloneNode(true);
  for (const node of copy.querySelectorAll("*")) {
    const attributes = [...node.attributes].sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const { name } of attributes) node.removeAttribute(name);
    for (const { name, value } of attributes) node.setAttribute(name, value);
  }
  return copy.innerHTML.replace(/>\\s+</g, "><").trim();
}"""


def wait_for_colours(chat: ChatPage) -> None:
    expect(
        chat.answer.locator("code.language-python:not([data-coloured]), code.language-js:not([data-coloured])")
    ).to_have_count(0)


@pytest.mark.parametrize("text", [MARKDOWN, NASTY], ids=["markdown", "nasty"])
def test_live_and_saved_text_are_the_same_and_inert(open_page, person: Person, text: str) -> None:
    chat = open_page(person)
    chat.send(f"Say [[itl=3 ttft=10 text={text}]]")
    chat.wait_for_end()
    wait_for_colours(chat)
    live = chat.answer.evaluate(MARKUP)
    chat.page.reload()
    wait_for_colours(chat)
    assert chat.answer.evaluate(MARKUP) == live
    assert chat.page.evaluate("window.hit") is None
    hrefs = chat.answer.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert all(href is None or href.startswith(("https://", "mailto:", "/")) for href in hrefs)
    assert chat.answer.locator("img, script, svg:not(.icon), [style], [onclick], [onerror]").count() == 0


def test_finished_blocks_stay_the_same_nodes_and_a_selection_stays(open_page, person: Person) -> None:
    chat = open_page(person)
    text = "First paragraph.\n\n- one\n- two\n\nLast **words** that take a while to come, one after the other."
    chat.send(f"Say [[itl=40 ttft=10 text={text}]]")
    expect(chat.answer.locator("p").nth(1)).to_contain_text("Last")
    chat.page.evaluate(
        """() => {
          const answer = document.querySelector(".answer [data-text]");
          window.nodes = [...answer.children];
          window.text = answer.lastElementChild.firstChild;
          getSelection().setBaseAndExtent(answer.firstChild.firstChild, 0, window.text, 4);
        }"""
    )
    chat.wait_for_end()
    same = "[...document.querySelector('.answer [data-text]').children].every((node, n) => node === window.nodes[n])"
    assert chat.page.evaluate(same)
    assert chat.page.evaluate("window.text.isConnected")
    assert chat.page.evaluate("getSelection().toString()").replace("\n", "").startswith("First paragraph.")
    assert chat.page.evaluate("getSelection().toString()").endswith("Last")


def test_copying(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Some **bold**.\n\n```python\nprint(1)\n```"
    chat.send(f"Say [[itl=1 text={text}]]")
    chat.wait_for_end()
    chat.act(chat.answers.last, "Copy answer")
    assert chat.page.evaluate("navigator.clipboard.readText()") == text
    expect(chat.page.locator("#live")).to_contain_text("Copied")
    chat.answer.get_by_role("button", name="Copy").click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "print(1)\n"
    chat.act(chat.questions.last, "Copy message")
    assert "Say [[itl=1" in chat.page.evaluate("navigator.clipboard.readText()")


def test_the_view_follows_only_at_the_bottom(open_page, person: Person) -> None:
    chat = open_page(person, viewport={"width": 800, "height": 500})
    lines = "\n\n".join(f"Line {n}." for n in range(60))
    chat.send(f"Say [[itl=8 ttft=10 text={lines}]]")
    chat.wait_for_text("Line 20.")
    box = chat.page.locator("[data-scroll]")
    gap = "box => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert box.evaluate(gap) < 80
    jump = chat.page.get_by_role("button", name="Jump to latest")
    expect(jump).to_be_hidden()
    chat.page.mouse.move(400, 200)
    chat.page.mouse.wheel(0, -400)
    expect(jump).to_be_visible()
    top = box.evaluate("box => box.scrollTop")
    chat.wait_for_text("Line 40.")
    assert box.evaluate("box => box.scrollTop") == top
    jump.click()
    chat.wait_for_end()
    assert box.evaluate(gap) < 80
