/**
 * PURE: growing Markdown divided into blocks that are finished and a rest that may still change.
 *
 * A top-level block is finished once a whole line began another one: CommonMark's containers never reopen. Only whole
 * lines decide, for half a line may turn out to be something else ("*" a list, "**bold**" a paragraph's next line).
 */

export class Blocks {
  /** @param {import("./markdown.js").Markdown} md */
  constructor(md) {
    this.md = md;
    this.env = {}; // link references of the finished blocks
    this.rest = ""; // source from the first unfinished block on
    this.carry = ""; // a CR whose LF may follow
    this.decided = 0; // length of the rest's whole lines that were looked at
  }

  /**
   * Take more text; the blocks that are now finished, as HTML, in order.
   * @param {string} text
   * @returns {string[]}
   */
  push(text) {
    text = this.carry + text;
    this.carry = text.endsWith("\r") ? "\r" : "";
    this.rest += (this.carry ? text.slice(0, -1) : text).replace(/\r\n?/g, "\n");
    const whole = this.rest.lastIndexOf("\n") + 1;
    if (whole <= this.decided) return [];
    const cut = this.cut(this.rest.slice(0, whole));
    this.decided = whole - cut;
    return cut ? [this.take(cut)] : [];
  }

  /** The unfinished rest as HTML. Its link references are not kept: a half one would stay. */
  open() {
    return this.md.render(this.rest, copyOf(this.env));
  }

  /** No more text comes: the rest as HTML. */
  finish() {
    this.rest += this.carry ? "\n" : "";
    this.carry = "";
    return this.take(this.rest.length);
  }

  /** Where the last block begins. @param {string} source */
  cut(source) {
    const starts = this.md
      .parse(source, copyOf(this.env))
      .filter((token) => token.level === 0 && token.map && token.nesting >= 0)
      .map((token) => /** @type {[number, number]} */ (token.map)[0]);
    return starts.length < 2 ? 0 : offsetOfLine(source, starts[starts.length - 1]);
  }

  /** @param {number} length */
  take(length) {
    const html = this.md.render(this.rest.slice(0, length), this.env);
    this.rest = this.rest.slice(length);
    return html;
  }
}

/** @param {any} env */
function copyOf(env) {
  return { ...env, references: { ...env.references } };
}

/** @param {string} source @param {number} line */
function offsetOfLine(source, line) {
  let offset = 0;
  for (let n = 0; n < line; n++) offset = source.indexOf("\n", offset) + 1;
  return offset;
}
