/** Markdown to safe markup, as the server does it (conversations/rendering.py): the same text looks the same twice. */
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

/** @typedef {InstanceType<typeof MarkdownIt>} Markdown */

const LONGEST_PARAGRAPH = 10_000; // characters; some inputs, such as "[[[[…", take quadratic time

/** No raw HTML: the first wall. DOMPurify is the second. */
export function makeMarkdown() {
  const md = new MarkdownIt("commonmark", { html: false, linkify: true, maxNesting: 40 });
  md.enable(["table", "strikethrough", "linkify"]);
  md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  md.core.ruler.at("inline", parseParagraphs);
  md.core.ruler.push("align_cells", alignCells);
  md.renderer.rules.image = imageAsLink(md);
  return md;
}

/** markdown-it's own rule, but for what is too long. @param {any} state */
function parseParagraphs(state) {
  for (const token of state.tokens) {
    if (token.type !== "inline") continue;
    token.children = [];
    if (token.content.length <= LONGEST_PARAGRAPH) {
      state.md.inline.parse(token.content, state.md, state.env, token.children);
      continue;
    }
    const text = new state.Token("text", "", 0);
    text.content = token.content;
    token.children.push(text);
  }
}

/** style="text-align:right", which the site's policy forbids, as align="right". @param {any} state */
function alignCells(state) {
  for (const token of state.tokens) {
    const style = token.attrGet("style");
    if (!style || !token.type.endsWith("_open")) continue;
    token.attrs = token.attrs.filter(([/** @type {string} */ name]) => name !== "style");
    token.attrSet("align", style.replace("text-align:", ""));
  }
}

/** An image would be fetched from a server that the text chose: whoever wants it follows the link. */
function imageAsLink(/** @type {Markdown} */ md) {
  const { escapeHtml } = md.utils;
  return (/** @type {any[]} */ tokens, /** @type {number} */ index) => {
    const source = tokens[index].attrGet("src") ?? "";
    return `<a href="${escapeHtml(source)}">${escapeHtml(tokens[index].content || source)}</a>`;
  };
}

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  // Relative addresses too, as on the server; this also judges the values of other attributes.
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
};

/** @param {string} html @returns {DocumentFragment} */
export function safe(html) {
  const fragment = DOMPurify.sanitize(html, { ...ALLOWED, RETURN_DOM_FRAGMENT: true });
  for (const link of fragment.querySelectorAll("a")) {
    link.setAttribute("rel", "noopener noreferrer nofollow");
    link.setAttribute("target", "_blank");
  }
  return fragment;
}
