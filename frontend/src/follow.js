/** The view follows the text only while the reader is at the bottom; otherwise a button leads there. */

const NEAR = 60; // px from the bottom that still count as there

export class Follow {
  /** @param {HTMLElement} box @param {HTMLElement} button */
  constructor(box, button) {
    this.box = box;
    this.button = button;
    this.isAtBottom = true;
    box.addEventListener("scroll", () => this.look(), { passive: true });
    button.addEventListener("click", () => this.jump());
    // The composer grows, a phone's keyboard opens: stay at the end.
    this.observer = new ResizeObserver(() => this.update());
    this.observer.observe(box);
    this.jump();
  }

  close() {
    this.observer.disconnect();
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    this.isAtBottom = scrollHeight - scrollTop - clientHeight < NEAR;
    this.button.hidden = this.isAtBottom;
  }

  /** The text grew. */
  update() {
    if (this.isAtBottom) this.box.scrollTop = this.box.scrollHeight;
    else this.button.hidden = false;
  }

  jump() {
    this.isAtBottom = true;
    this.button.hidden = true;
    this.box.scrollTop = this.box.scrollHeight;
  }
}
