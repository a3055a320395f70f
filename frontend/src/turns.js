/** The list of turns on the page: making, finding and exchanging them. */
import { decorate, highlight } from "./code.js";

export class Turns {
  /** @param {HTMLElement} page */
  constructor(page) {
    this.page = page;
    this.list = /** @type {HTMLElement} */ (page.querySelector("[data-turns]"));
    decorate(this.list);
    highlight(this.list);
  }

  /** @returns {HTMLElement[]} */
  get all() {
    return /** @type {HTMLElement[]} */ ([...this.list.children]);
  }

  /** @returns {HTMLElement | undefined} */
  get last() {
    return this.all.at(-1);
  }

  /** The last turn of the person. */
  get lastQuestion() {
    return this.all.filter((turn) => turn.dataset.role === "user").at(-1);
  }

  /** @param {string} id */
  find(id) {
    return this.all.find((turn) => turn.dataset.message === id);
  }

  /** @param {string} name @returns {HTMLElement} */
  template(name) {
    const template = /** @type {HTMLTemplateElement} */ (this.page.querySelector(`[data-template="${name}"]`));
    return /** @type {HTMLElement} */ (template.content.firstElementChild?.cloneNode(true));
  }

  /** A turn that the server does not have yet. @param {string} id @param {string} text */
  question(id, text) {
    const turn = this.template("user");
    turn.dataset.message = id;
    part(turn, "text").textContent = text;
    return turn;
  }

  answer() {
    return this.template("answer");
  }

  /**
   * From `turn` on everything is exchanged for `turns`; undefined: they are added. Returns how to undo that.
   * @param {HTMLElement | undefined} turn
   * @param {HTMLElement[]} turns
   */
  exchange(turn, turns) {
    const removed = turn ? this.all.slice(this.all.indexOf(turn)) : [];
    removed.forEach((old) => old.remove());
    this.list.append(...turns);
    this.page.classList.remove("empty");
    return () => {
      turns.forEach((made) => made.remove());
      this.list.append(...removed);
      this.page.classList.toggle("empty", !this.list.childElementCount);
    };
  }

  /**
   * Become like the server's list, leaving the text of turns that stay alone.
   * @param {HTMLElement[]} wanted
   */
  reconcile(wanted) {
    wanted.forEach((next, n) => {
      const present = this.find(next.dataset.message ?? "");
      if (present) this.refoot(present, next);
      else {
        decorate(next);
        highlight(next);
      }
      const turn = present ?? next;
      if (this.list.children[n] !== turn) this.list.insertBefore(turn, this.list.children[n] ?? null);
    });
    while (this.list.childElementCount > wanted.length) this.list.lastElementChild?.remove();
    this.page.classList.toggle("empty", !wanted.length);
  }

  /** The actions below a turn, and what the server knows of it. @param {HTMLElement} turn @param {HTMLElement} next */
  refoot(turn, next) {
    const foot = part(turn, "foot");
    const focused = foot.contains(document.activeElement) ? document.activeElement?.getAttribute("data-do") : null;
    foot.replaceWith(part(next, "foot"));
    if (focused) /** @type {HTMLElement | null} */ (turn.querySelector(`[data-do="${focused}"]`))?.focus();
    if (next.dataset.generation) turn.dataset.generation = next.dataset.generation;
    else delete turn.dataset.generation;
    const note = next.querySelector(".note");
    if (note && !turn.querySelector(".note")) part(turn, "text").before(note);
  }
}

/** @param {Element} turn @param {string} name @returns {HTMLElement} */
export function part(turn, name) {
  return /** @type {HTMLElement} */ (turn.querySelector(`[data-${name}]`));
}

/** What Copy copies: the Markdown of an answer, the words of a person. @param {Element} turn */
export function sourceOf(turn) {
  const source = /** @type {HTMLTemplateElement | null} */ (turn.querySelector("template[data-source]"));
  return source ? (source.content.textContent ?? "") : (part(turn, "text").textContent ?? "");
}
