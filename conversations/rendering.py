"""Answers as HTML: Markdown without raw HTML, then sanitized, so that nothing in it can act (case 40)."""

import functools

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

# Characters. Some inputs, such as "[[[[…", take quadratic time: what is longer is shown as it is.
LONGEST = 100_000
LONGEST_PARAGRAPH = 10_000
NESTING = 40
CACHED = 20_000  # answers up to this length are rendered once per process
SCHEMES = {"http", "https", "mailto"}
TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


def render_markdown(text: str) -> SafeString:
    """The HTML of an answer. Total: whatever the text, it returns; what cannot be parsed is shown as it is.

    CommonMark with tables, strike-through and bare links. Fenced code has the class `language-x`; images are links.
    """
    if len(text) > LONGEST:
        return _as_it_is(text)
    return _render_once(text) if len(text) <= CACHED else _render(text)


@functools.lru_cache(maxsize=1000)
def _render_once(text: str) -> SafeString:
    return _render(text)


def _render(text: str) -> SafeString:
    try:
        tokens = _markdown.parse(text)
        if any(token.level >= NESTING - 1 for token in tokens):  # what is nested deeper was left out
            return _as_it_is(text)
        html = _markdown.renderer.render(tokens, _markdown.options, {})
    except RecursionError:
        return _as_it_is(text)
    return mark_safe(_cleaner.clean(html))  # noqa: S308 - sanitized


def _as_it_is(text: str) -> SafeString:
    return mark_safe(f"<pre>{escape(text)}</pre>")  # noqa: S308 - escaped


def _image_as_link(self: RendererHTML, tokens: list[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """An image would be fetched from a server that the text chose: whoever wants it follows the link."""
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    return f'<a href="{escape(source)}">{escape(token.content or source)}</a>'


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Of classes only a code block's language."""
    if name != "class":
        return value
    language = value.removeprefix("language-")
    return value if language != value and language.isprintable() and " " not in language else None


def _parse_paragraphs(state: StateCore) -> None:
    """markdown-it's own rule, but for what is too long."""
    for token in state.tokens:
        if token.type == "inline" and len(token.content) > LONGEST_PARAGRAPH:
            token.children = [Token("text", "", 0, content=token.content)]
        elif token.type == "inline":
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _align_cells(state: StateCore) -> None:
    """`style="text-align:right"`, which the site's policy forbids, as `align="right"`."""
    for token in state.tokens:
        style = token.attrs.pop("style", None) if token.type in ("th_open", "td_open") else None
        if style is not None:
            token.attrs["align"] = str(style).removeprefix("text-align:")


def _make() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": True, "maxNesting": NESTING})
    markdown.enable(["table", "strikethrough", "linkify"])
    assert markdown.linkify is not None
    markdown.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    markdown.core.ruler.at("inline", _parse_paragraphs)
    markdown.core.ruler.push("align_cells", _align_cells)
    markdown.add_render_rule("image", _image_as_link)
    return markdown


_markdown = _make()
_cleaner = nh3.Cleaner(
    tags=TAGS,
    attributes={"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}},
    attribute_filter=_attribute,
    url_schemes=SCHEMES,
    link_rel="noopener noreferrer nofollow",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)
