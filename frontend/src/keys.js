/** The keyboard, wherever the focus is. The list of keys is in templates/chat/_dialogs.html. */
import * as sidebar from "./sidebar.js";
import { closeTip } from "./tips.js";

/** @param {KeyboardEvent} event @param {import("./chat.js").Chat | null} chat */
export function key(event, chat) {
  if (event.isComposing) return;
  sidebar.menuKey(event);
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") escape(event, chat);
  else if (command && event.shiftKey && event.key.toLowerCase() === "o") run(event, newChat);
  else if (command && !event.shiftKey && event.key.toLowerCase() === "k") run(event, sidebar.search);
  else if (event.key === "?" && !isTyping(event.target)) run(event, help);
}

/** @param {Event} event @param {() => void} act */
function run(event, act) {
  event.preventDefault();
  act();
}

/** Closes what lies on top; else stops the answer. A dialog closes by itself. */
function escape(/** @type {KeyboardEvent} */ event, /** @type {import("./chat.js").Chat | null} */ chat) {
  const target = /** @type {Element} */ (event.target);
  const renaming = /** @type {HTMLFormElement | null} */ (target.closest("[data-rename]"));
  if (document.querySelector("dialog[open]")) return;
  if (renaming) sidebar.endRenaming(renaming, false);
  else if (!sidebar.closeMenu() && !closeDetails() && !closeTip() && !sidebar.closeDrawer() && chat?.isRunning) chat.stop();
}

function closeDetails() {
  const open = document.querySelector("details[data-menu][open]");
  open?.removeAttribute("open");
  open?.querySelector("summary")?.focus();
  return Boolean(open);
}

function newChat() {
  /** @type {HTMLElement | null} */ (document.querySelector("[data-new-chat]"))?.click();
}

function help() {
  /** @type {HTMLDialogElement | null} */ (document.getElementById("keys-dialog"))?.showModal();
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}
