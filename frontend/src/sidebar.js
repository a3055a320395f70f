/** The sidebar: drawer on a phone, search, the menu of a chat, renaming, deleting. */
import htmx from "htmx.org/dist/htmx.esm.js";
import { reload } from "./chatlist.js";
import { word } from "./words.js";

const narrow = matchMedia("(max-width: 47.99rem)");
/** @param {string} selector @returns {any} */
const one = (selector) => document.querySelector(selector);

// -- the drawer -----------------------------------------------------------------------------------

/** @type {HTMLElement | null} */
let opener = null;

export function openDrawer() {
  opener = /** @type {HTMLElement | null} */ (document.activeElement);
  drawer(true);
  one("#search").focus();
}

export function closeDrawer() {
  if (!one("#sidebar")?.classList.contains("open")) return false;
  drawer(false);
  opener?.focus();
  return true;
}

/** Dialog semantics while it is over the page; what is below is inert, which keeps the focus in. @param {boolean} open */
function drawer(open) {
  const sidebar = one("#sidebar");
  sidebar.classList.toggle("open", open);
  sidebar.setAttribute("role", open ? "dialog" : "complementary");
  if (open) sidebar.setAttribute("aria-modal", "true");
  else sidebar.removeAttribute("aria-modal");
  one("#scrim").hidden = !open;
  one("#main").inert = one(".skip").inert = open;
  for (const button of document.querySelectorAll("[data-open-sidebar]")) button.setAttribute("aria-expanded", String(open));
}

/** To the search box, in the drawer on a phone. */
export function search() {
  if (narrow.matches) openDrawer();
  one("#search")?.focus();
  one("#search")?.select();
}

// -- the menu of a chat ---------------------------------------------------------------------------

/** @type {HTMLElement | null} */
let menuButton = null;

/** @param {HTMLElement} button */
export function openMenu(button) {
  const again = menuButton === button;
  closeMenu();
  if (again) return;
  menuButton = button;
  button.setAttribute("aria-expanded", "true");
  const menu = one("#chat-menu");
  const isArchived = itemOf(button).dataset.archived === "1";
  menu.querySelector('[data-act="archive"]').hidden = isArchived;
  menu.querySelector('[data-act="unarchive"]').hidden = !isArchived;
  menu.hidden = false;
  const at = button.getBoundingClientRect();
  const left = Math.min(at.left, innerWidth - menu.offsetWidth - 8);
  const top = at.bottom + menu.offsetHeight + 8 > innerHeight ? at.top - menu.offsetHeight - 4 : at.bottom + 4;
  menu.style.left = `${left}px`;
  menu.style.top = `${top}px`;
  menu.querySelector(".menu-item").focus();
}

export function closeMenu() {
  if (!menuButton) return false;
  menuButton.setAttribute("aria-expanded", "false");
  if (one("#chat-menu").contains(document.activeElement)) menuButton.focus();
  menuButton = null;
  one("#chat-menu").hidden = true;
  return true;
}

/** Arrow keys in the menu. @param {KeyboardEvent} event */
export function menuKey(event) {
  if (!menuButton || !["ArrowDown", "ArrowUp", "Home", "End", "Tab"].includes(event.key)) return;
  if (event.key === "Tab") return void closeMenu();
  event.preventDefault();
  const items = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#chat-menu .menu-item:not([hidden])")]);
  const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key] ?? 0;
  items[(next + items.length) % items.length].focus();
}

/** @param {string} act  of the menu */
export function menuAct(act) {
  const item = menuButton && itemOf(menuButton);
  closeMenu();
  if (!item) return;
  if (act === "rename") htmx.ajax("get", path(item, "rename"), { target: item, swap: "outerHTML" });
  if (act === "archive") post(item, "archive", { archived: "1" });
  if (act === "unarchive") post(item, "archive", { archived: "0" });
  if (act === "delete") confirmDelete(item);
}

/** @param {Element} button @returns {HTMLElement} */
function itemOf(button) {
  return /** @type {HTMLElement} */ (button.closest("[data-chat-item]"));
}

/** @param {HTMLElement} item @param {string} act */
function path(item, act) {
  return `/c/${item.dataset.chatItem}/${act}`;
}

/** @param {HTMLElement} item @param {string} act @param {object} [values] */
function post(item, act, values) {
  htmx.ajax("post", path(item, act), { target: item, swap: "outerHTML", values });
}

/** @param {HTMLElement} item */
function confirmDelete(item) {
  const dialog = one("#delete-dialog");
  dialog.querySelector("[data-delete-name]").textContent = item.querySelector("a")?.textContent;
  dialog.returnValue = "";
  dialog.onclose = () => dialog.returnValue === "delete" && post(item, "delete");
  dialog.showModal();
}

/** Leaving the form keeps what was typed; Escape does not. @param {HTMLFormElement} form @param {boolean} keep */
export function endRenaming(form, keep) {
  if (form.dataset.ended) return;
  form.dataset.ended = "1";
  if (keep) htmx.trigger(form, "submit");
  else htmx.ajax("get", form.dataset.rename, { target: form.closest("li"), swap: "outerHTML" });
}

/** @param {HTMLElement} button */
export function toggleArchive(button) {
  const shows = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shows));
  one("#archived").value = shows ? "1" : "0";
  htmx.trigger(one(".search"), "refresh");
}

/** The list could not be loaded. */
export function listFailed() {
  const line = document.createElement("p");
  line.className = "chats-empty";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = word("retry");
  button.addEventListener("click", reload);
  line.append(`${word("failed_request")} `, button);
  one("#chats").replaceChildren(line);
}
