"""Answers as HTML: what Markdown means, and nothing that can act (case 40)."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.rendering import LONGEST, render_markdown

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<script>alert(1)</script>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "[x](&#x6A;avascript:alert(1))",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    "![x](javascript:alert(1))",
    '![x](https://e.org/"onerror="alert(1))',
    '!["><script>alert(1)</script>](https://e.org/a.png)',
    "<javascript:alert(1)>",
    '[x](https://e.org "\\"onmouseover=alert(1)")',
    '```x"onclick="alert(1)\ncode\n```',
    "```<script>\nalert(1)\n```",
    "[x]: javascript:alert(1)\n\n[x]",
    "<style>*{display:none}</style>",
    "<form action=https://e.org><input name=password></form>",
    "<base href=https://e.org>",
    "\0<img src=x onerror=alert(1)>",
    'https://e.org/"onmouseover=alert(1)',
]
TAG = re.compile(r"<(/?)([a-z0-9]+)([^>]*)>")
ATTRIBUTE = re.compile(r'([a-z-]+)="([^"]*)"')
KNOWN = {
    "a": {"href", "title", "target", "rel"}, "code": {"class"}, "ol": {"start"}, "th": {"align"}, "td": {"align"},
}  # fmt: skip
PLAIN = {
    "blockquote", "br", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "p", "pre", "s", "strong", "table",
    "tbody", "thead", "tr", "ul",
}  # fmt: skip


def assert_inert(html: str) -> None:
    """Known tags with known attributes only, links to known schemes only, no other angle bracket."""
    for _, tag, attributes in TAG.findall(html):
        assert tag in KNOWN or tag in PLAIN, tag
        found = dict(ATTRIBUTE.findall(attributes))
        assert found.keys() <= KNOWN.get(tag, set())
        if "href" in found:
            scheme = re.match(r"([^/?#:]*):", found["href"])
            assert scheme is None or scheme[1].lower() in {"http", "https", "mailto"}, found["href"]
            assert found["rel"] == "noopener noreferrer nofollow" and found["target"] == "_blank"
    assert "<" not in TAG.sub("", html)


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_inert(attack: str) -> None:
    for text in (attack, f"| a |\n|---|\n| {attack} |", f"- {attack}\n> {attack}", f"# {attack}", f"**{attack}**"):
        assert_inert(render_markdown(text))


@given(
    st.lists(st.sampled_from([*ATTACKS, *"<>[]()!`*_|\n\\\"'&;:#- "]) | st.text(max_size=5), max_size=12).map("".join)
)
def test_mixtures_are_inert(text: str) -> None:
    assert_inert(render_markdown(text))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A\n\n*b* **c** ~~d~~ `e`", "<h1>A</h1>\n<p><em>b</em> <strong>c</strong> <s>d</s> <code>e</code></p>\n"),
        ("```python\nx < 1\n```", '<pre><code class="language-python">x &lt; 1\n</code></pre>\n'),
        ("```c++ title=x\n```", '<pre><code class="language-c++"></code></pre>\n'),
        ("    x", "<pre><code>x\n</code></pre>\n"),
        ("3. c\n4. d", '<ol start="3">\n<li>c</li>\n<li>d</li>\n</ol>\n'),
        ("a\n\n> b", "<p>a</p>\n<blockquote>\n<p>b</p>\n</blockquote>\n"),
        ("e.org and a@b.org stay text", "<p>e.org and a@b.org stay text</p>\n"),
        ("", ""),
    ],
)
def test_markdown(text: str, html: str) -> None:
    assert render_markdown(text) == html


def test_tables_are_aligned_without_styles() -> None:
    html = render_markdown("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert "<th>a</th>" in html and '<td align="right">2</td>' in html and "style" not in html


@pytest.mark.parametrize("text", ["[x](https://e.org)", "<https://e.org>", "https://e.org", "![x](https://e.org)"])
def test_links_and_images_are_links_that_tell_nothing(text: str) -> None:
    assert 'href="https://e.org" target="_blank" rel="noopener noreferrer nofollow"' in render_markdown(text)
    assert "<img" not in render_markdown(text)


HOSTILE = [
    "[",
    "![",
    "![[]()",
    "> ",
    "* ",
    "*a **b ",
    "`a `` ",
    "<",
    "|a|\n|-|\n",
    "- ",
    "((",
    "http://",
    "&",
    "\\",
    "[a](",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("size", [LONGEST, 1_000_000])
def test_hostile_input_returns_soon(piece: str, size: int) -> None:
    began = time.process_time()
    assert_inert(render_markdown((piece * size)[:size])[:10_000].rpartition("<")[0])
    assert time.process_time() - began < 5


def test_deep_nesting_returns() -> None:
    assert "deep" in render_markdown("".join("  " * depth + "- deep\n" for depth in range(300)))
    assert "deep" in render_markdown(">" * 50_000 + "deep")
    assert "deep" in render_markdown("[" * 5000 + "deep" + "](x)" * 5000)
