/** The text of one answer while it streams: finished blocks are written once and never again. */
import { Blocks } from "./blocks.js";
import { decorate, highlight } from "./code.js";
import { makeMarkdown, safe } from "./markdown.js";
import { patch } from "./patch.js";

const markdown = makeMarkdown();

export class Prose {
  /**
   * @param {HTMLElement} element
   * @param {object} on
   * @param {() => void} on.change  after each change of the page
   * @param {(text: string) => void} on.block  a block's text, once it is finished
   */
  constructor(element, on) {
    this.element = element;
    this.on = on;
    this.frame = 0;
    this.clear();
  }

  clear() {
    this.blocks = new Blocks(markdown);
    this.finished = 0; // child nodes of the element that are
    this.pending = "";
    this.element.replaceChildren();
    this.element.classList.add("live");
  }

  /** More text; the page shows it with the next frame it draws. @param {string} text */
  append(text) {
    this.pending += text;
    // A hidden page draws no frames: then at once, so that it is whole when it is looked at.
    if (document.hidden) this.draw();
    else this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const html = this.blocks.push(this.pending);
    this.pending = "";
    html.forEach((block) => this.settle(block));
    this.put(this.blocks.open());
    this.on.change();
  }

  /** The text is whole. */
  finish() {
    this.draw();
    this.settle(this.blocks.finish());
    patch(this.element, this.finished, []);
    this.element.classList.remove("live", "waiting");
    this.on.change();
  }

  /** @param {string} html */
  settle(html) {
    const added = this.put(html);
    this.finished += added.length;
    for (const node of added) {
      if (!(node instanceof HTMLElement)) continue;
      highlight(node);
      this.on.block(node.innerText);
    }
  }

  /** The nodes of `html` behind the finished ones. @param {string} html */
  put(html) {
    const fragment = safe(html);
    decorate(fragment);
    const nodes = [...fragment.childNodes].filter((node) => node.nodeType === Node.ELEMENT_NODE);
    patch(this.element, this.finished, nodes);
    return [...this.element.childNodes].slice(this.finished, this.finished + nodes.length);
  }
}
