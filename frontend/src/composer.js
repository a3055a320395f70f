/** Where a message is written. Enter sends, Shift+Enter breaks the line, an input method's Enter does neither. */

/** Whether this Enter is meant to send. @param {KeyboardEvent} event */
export function sends(event) {
  const isComposing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !event.altKey && !isComposing;
}

/** Grow with the text where CSS cannot (field-sizing). @param {HTMLTextAreaElement} area */
export function grow(area) {
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

export class Composer {
  /**
   * @param {HTMLElement} page
   * @param {object} on
   * @param {(text: string) => void} on.send
   * @param {() => void} on.stop
   * @param {() => void} on.editLast
   * @param {(text: string) => void} on.draft
   * @param {(model: string) => void} on.model
   */
  constructor(page, on) {
    this.form = /** @type {HTMLFormElement} */ (page.querySelector("[data-composer]"));
    this.area = /** @type {HTMLTextAreaElement} */ (this.form.querySelector("textarea"));
    this.sendButton = /** @type {HTMLButtonElement} */ (this.form.querySelector("[data-send]"));
    this.stopButton = /** @type {HTMLButtonElement} */ (this.form.querySelector("[data-stop]"));
    this.picker = /** @type {HTMLSelectElement | null} */ (this.form.querySelector("[data-model]"));
    this.error = /** @type {HTMLElement} */ (page.querySelector(".dock [data-error]"));
    this.on = on;
    this.isRunning = false;
    this.listen();
  }

  listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.form.addEventListener("click", (event) => {
      if (event.target === this.form) this.area.focus();
    });
    this.stopButton.addEventListener("click", () => this.on.stop());
    this.picker?.addEventListener("change", () => this.on.model(this.model ?? ""));
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("keydown", (event) => {
      if (sends(event)) {
        event.preventDefault();
        this.submit();
      } else if (event.key === "ArrowUp" && !this.area.value && !event.isComposing) {
        event.preventDefault();
        this.on.editLast();
      }
    });
  }

  get model() {
    return this.picker?.value;
  }

  get text() {
    return this.area.value;
  }

  /** @param {string} text */
  set text(text) {
    this.area.value = text;
    grow(this.area);
    this.buttons();
  }

  changed() {
    grow(this.area);
    this.buttons();
    this.on.draft(this.area.value);
  }

  submit() {
    if (this.isRunning || !this.area.value.trim()) return;
    this.on.send(this.area.value);
    this.area.focus();
  }

  focus() {
    this.area.focus({ preventScroll: true });
  }

  /** Stop replaces Send while an answer runs. @param {boolean} isRunning */
  running(isRunning) {
    const hadFocus = document.activeElement === this.stopButton || document.activeElement === this.sendButton;
    this.isRunning = isRunning;
    this.buttons();
    if (hadFocus) this.focus();
  }

  buttons() {
    this.stopButton.hidden = !this.isRunning;
    this.sendButton.hidden = this.isRunning;
    this.sendButton.disabled = !this.area.value.trim();
  }

  /** @param {Node[]} parts  words and buttons */
  fail(...parts) {
    this.error.replaceChildren(...parts);
    this.error.hidden = false;
  }

  clearError() {
    this.error.hidden = true;
    this.error.replaceChildren();
  }
}
