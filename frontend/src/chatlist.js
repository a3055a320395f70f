/** The list of chats stays true: what happened to a chat, here or on another page, changes its item and no other. */
import htmx from "htmx.org/dist/htmx.esm.js";
import { markup } from "./api.js";

const SOON_MS = 120; // several news of one chat are one look

/** @param {string} selector @returns {any} */
const one = (selector) => document.querySelector(selector);
/** @type {Map<string, ReturnType<typeof setTimeout>>} */
const timers = new Map();

/** The whole list again, as it is filtered now: when something may have been missed. */
export function reload() {
  soon("", () => one(".search") && htmx.trigger(one(".search"), "refresh"));
}

/** @param {string} key @param {() => void} act */
function soon(key, act) {
  clearTimeout(timers.get(key));
  timers.set(key, setTimeout(act, SOON_MS));
}

/** Mark the chat that is shown. */
export function mark() {
  for (const link of document.querySelectorAll(".chat a")) {
    if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** @param {{conversation: string, change: string}} news */
export function tell({ conversation, change }) {
  if (!one("#chats")) return;
  if (change === "deleted") return void find(conversation)?.remove();
  const isNewest = change === "created" || change === "answering";
  soon(conversation, () => look(conversation, isNewest).catch(reload));
}

/** @param {string} id @returns {HTMLElement | null} */
function find(id) {
  return one(`[data-chat-item="${CSS.escape(id)}"]`);
}

/** @param {string} id @param {boolean} isNewest  it goes to the top */
async function look(id, isNewest) {
  const next = /** @type {HTMLElement | null} */ ((await markup(`/c/${id}/item`)).querySelector("[data-chat-item]"));
  const present = find(id);
  if (!next || present?.classList.contains("renaming")) return;
  if (next.dataset.archived !== one("#archived").value) return void present?.remove();
  const focused = focusedIn(present);
  if (present && !isNewest) present.replaceWith(next);
  else if (!putOnTop(present, next)) return reload();
  htmx.process(next);
  if (focused) /** @type {HTMLElement | null} */ (next.querySelector(focused))?.focus();
  mark();
}

/** @param {HTMLElement | null} item  the selector of what has the focus in it */
function focusedIn(item) {
  if (!item?.contains(document.activeElement)) return "";
  return document.activeElement?.tagName === "A" ? "a" : "button";
}

/** Whether the list begins with today's chats; one that is filtered takes no new ones. */
function putOnTop(/** @type {HTMLElement | null} */ present, /** @type {HTMLElement} */ next) {
  const isFiltered = one("#search").value.trim() !== "";
  const today = one("#chats .chats-date:first-child[data-today] + ul");
  if (isFiltered) present?.replaceWith(next);
  else if (today) {
    present?.remove();
    today.prepend(next);
  }
  return isFiltered || Boolean(today);
}
