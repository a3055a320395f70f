/** The form in place of a person's turn that is edited. */
import { grow, sends } from "./composer.js";
import { wordsFor } from "./failures.js";
import { part } from "./turns.js";

/** @param {import("./chat.js").Chat} chat @param {HTMLElement} turn */
export function editForm(chat, turn) {
  if (turn.querySelector(".edit")) return;
  const form = /** @type {HTMLFormElement} */ (chat.turns.template("edit"));
  const area = /** @type {HTMLTextAreaElement} */ (form.querySelector("textarea"));
  const hidden = [part(turn, "text"), part(turn, "foot")];
  const show = (/** @type {boolean} */ isEditing) => hidden.forEach((box) => (box.hidden = isEditing));
  const close = () => {
    form.remove();
    show(false);
    chat.composer.focus();
  };
  const submit = () => {
    if (!area.value.trim()) return;
    const text = area.value;
    close();
    chat.resend(turn, text, (error) => {
      editForm(chat, turn);
      const again = /** @type {HTMLFormElement} */ (turn.querySelector(".edit"));
      /** @type {HTMLTextAreaElement} */ (again.querySelector("textarea")).value = text;
      part(again, "error").textContent = wordsFor(error);
      part(again, "error").hidden = false;
    });
  };
  area.value = part(turn, "text").textContent ?? "";
  area.addEventListener("input", () => grow(area));
  area.addEventListener("keydown", (event) => {
    if (sends(event)) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.querySelector('[data-do="cancel-edit"]')?.addEventListener("click", close);
  show(true);
  turn.append(form);
  grow(area);
  area.focus();
  area.setSelectionRange(area.value.length, area.value.length);
}
