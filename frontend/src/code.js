/** Code blocks and tables: a head with a copy button, room to scroll sideways, colours once a block is whole. */
import { word } from "./words.js";

/** @type {Promise<import("highlight.js").HLJSApi> | undefined} */
let highlighter;

/** Loaded with the first block of a named language. */
function loaded() {
  highlighter ??= import("./languages.js").then((module) => module.default);
  return highlighter;
}

/** Wrap what is not wrapped yet; works on the server's markup and on ours. @param {ParentNode} root */
export function decorate(root) {
  for (const pre of root.querySelectorAll("pre")) if (!pre.closest(".code")) wrapCode(pre);
  for (const table of root.querySelectorAll("table")) if (!table.closest(".wide")) wrapTable(table);
}

/** @param {HTMLPreElement} pre */
function wrapCode(pre) {
  const figure = document.createElement("figure");
  figure.className = "code";
  const head = document.createElement("figcaption");
  const name = document.createElement("span");
  name.textContent = languageOf(pre) || word("code");
  const button = /** @type {HTMLTemplateElement | null} */ (document.querySelector('[data-template="copy-code"]'));
  head.append(name, button?.content.cloneNode(true) ?? "");
  pre.replaceWith(figure);
  pre.tabIndex = 0; // the keyboard scrolls it
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", name.textContent);
  figure.append(head, pre);
}

/** @param {HTMLTableElement} table */
function wrapTable(table) {
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", word("table"));
  table.replaceWith(box);
  box.append(table);
}

/** @param {Element} pre */
function languageOf(pre) {
  return /(?:^|\s)language-(\S+)/.exec(pre.querySelector("code")?.className ?? "")?.[1] ?? "";
}

/** Colour the whole blocks below `root` (and itself). @param {ParentNode & Node} root */
export async function highlight(root) {
  const blocks = [...root.querySelectorAll("pre > code[class*='language-']:not([data-coloured])")];
  if (!blocks.length) return;
  const hljs = await loaded();
  for (const code of blocks) {
    const language = languageOf(/** @type {Element} */ (code.parentElement));
    if (!hljs.getLanguage(language) || code.hasAttribute("data-coloured")) continue;
    code.setAttribute("data-coloured", "");
    code.innerHTML = hljs.highlight(code.textContent ?? "", { language, ignoreIllegals: true }).value;
  }
}

/** @param {Element} button */
export function codeOf(button) {
  return button.closest(".code")?.querySelector("code")?.textContent ?? "";
}
