/** The list of chats stays true: what happened to a chat, here or on another page, changes its item and no other. */
import htmx from "htmx.org/dist/htmx.esm.js";
import { markup } from "./api.js";
import { patch } from "./patch.js";

const SOON_MS = 120; // several news of one chat are one look

/** @param {string} selector @returns {any} */
const one = (selector) => document.querySelector(selector);
/** @type {Map<string, ReturnType<typeof setTimeout>>} */
const timers = new Map();
/** @type {Set<string>} */
const newest = new Set(); // chats that go to the top with the next look

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
  if (change === "created" || change === "answering") newest.add(conversation);
  soon(conversation, () => look(conversation).catch(reload));
}

/** @param {string} id @returns {HTMLElement | null} */
function find(id) {
  return one(`[data-chat-item="${CSS.escape(id)}"]`);
}

/** The item as the server has it. @param {string} id @returns {Promise<void>} */
async function look(id) {
  const before = find(id);
  const next = /** @type {HTMLElement | null} */ ((await markup(`/c/${id}/item`)).querySelector("[data-chat-item]"));
  const present = find(id);
  if (!next || present?.classList.contains("renaming")) return;
  // It was exchanged meanwhile (a new title): what we fetched may be older.
  if (present !== before) return look(id);
  const goesUp = newest.delete(id);
  if (next.dataset.archived !== one("#archived").value) return void present?.remove();
  // The same node: a menu may be open on it, or its form on the way.
  if (present) patch(present, 0, [...next.childNodes]);
  // One that came from elsewhere, such as the archive, has its place by its date.
  if (goesUp ? !putOnTop(present ?? next) : !present) return reload();
  htmx.process(present ?? next);
  mark();
}

/** Whether there was a place: the list begins with today's chats. One that is filtered takes no new ones. */
function putOnTop(/** @type {HTMLElement} */ item) {
  if (one("#search").value.trim() !== "") return true;
  const today = one("#chats .chats-date:first-child[data-today] + ul");
  if (!today) return false;
  const focused = item.contains(document.activeElement) ? document.activeElement : null;
  if (today.firstElementChild !== item) today.prepend(item);
  /** @type {HTMLElement | null} */ (focused)?.focus();
  return true;
}
