/** What the scripts say, in the page's language: conversations/wording.py writes it into the page as JSON. */

/** @type {Record<string, string> | undefined} */
let table;

/**
 * The words for `key`, with {name} replaced by `values[name]`.
 * @param {string} key
 * @param {Record<string, string | number>} [values]
 */
export function word(key, values = {}) {
  table ??= JSON.parse(document.getElementById("words")?.textContent || "{}");
  return fill(table[key] ?? key, values);
}

/** @param {string} text @param {Record<string, string | number>} values */
export function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}
