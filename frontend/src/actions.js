/** The buttons below turns and in code blocks. */
import { announce } from "./announce.js";
import { codeOf } from "./code.js";
import { sourceOf } from "./turns.js";
import { word } from "./words.js";

const SHOWN_MS = 1500;

/** @param {import("./chat.js").Chat} chat @param {Element} target  what was clicked */
export function act(chat, target) {
  const button = /** @type {HTMLElement | null} */ (target.closest("[data-do], [data-leaf]"));
  const turn = /** @type {HTMLElement | null} */ (target.closest(".turn"));
  if (!button || !turn) return false;
  if (button.dataset.leaf) chat.updates.refresh(button.dataset.leaf);
  else if (button.dataset.do === "copy") copy(sourceOf(turn), button);
  else if (button.dataset.do === "copy-code") copy(codeOf(button), button);
  else if (button.dataset.do === "edit") chat.edit(turn);
  else if (button.dataset.do === "regenerate") chat.regenerate(turn);
  else if (button.dataset.do === "continue") chat.send(word("continue"));
  return true;
}

/** The text that stands beside a button on pages without a chat. @param {HTMLElement} button */
export function copyBeside(button) {
  copy(button.parentElement?.querySelector("code")?.textContent ?? "", button);
}

/** @param {string} text @param {HTMLElement} button */
async function copy(text, button) {
  const done = await written(text);
  announce(word(done ? "copied" : "not_copied"));
  const label = button.querySelector("span");
  if (label) label.textContent = word(done ? "copied" : "not_copied");
  button.classList.toggle("done-mark", done);
  setTimeout(() => {
    button.classList.remove("done-mark");
    if (label) label.textContent = word("copy");
  }, SHOWN_MS);
}

/** @param {string} text */
async function written(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writtenByCommand(text);
  }
}

/** Over plain HTTP there is no navigator.clipboard. @param {string} text */
function writtenByCommand(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
