/** Entry: wires the page's events to the chat, the sidebar and the keys. One listener each, on the document. */
import htmx from "htmx.org/dist/htmx.esm.js";
import { act, copyBeside } from "./actions.js";
import { csrfToken } from "./api.js";
import { Chat } from "./chat.js";
import * as chatlist from "./chatlist.js";
import { key } from "./keys.js";
import * as sidebar from "./sidebar.js";
import { placeTip } from "./tips.js";

/** @type {Chat | null} */
let chat = null;

/** The chat of the page that is now shown. */
function show() {
  const page = /** @type {HTMLElement | null} */ (document.querySelector("[data-chat]"));
  if (page !== chat?.page) {
    chat?.close();
    chat = page && new Chat(page);
    sidebar.closeDrawer();
    chat?.composer.focus();
  }
  chatlist.mark();
}

const clicks = {
  "[data-open-sidebar]": sidebar.openDrawer,
  "[data-close-sidebar], #scrim": sidebar.closeDrawer,
  "[data-chat-menu]": sidebar.openMenu,
  "#chat-menu [data-act]": (/** @type {HTMLElement} */ item) => sidebar.menuAct(item.dataset.act ?? ""),
  "[data-copy]": copyBeside,
  "[data-toggle-archive]": sidebar.toggleArchive,
  "[data-open-keys]": () => /** @type {HTMLDialogElement} */ (document.getElementById("keys-dialog")).showModal(),
};

/** On a new chat, "New chat" has nothing to load, and must not exchange the page under someone who types. */
document.addEventListener(
  "click",
  (event) => {
    if (!chat || chat.started || chat.isRunning || !(/** @type {Element} */ (event.target).closest("[data-new-chat]"))) return;
    event.preventDefault();
    event.stopPropagation();
    sidebar.closeDrawer();
    chat.composer.focus();
  },
  { capture: true },
);

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
  if (chat && isPlain && act(chat, target)) event.preventDefault();
  if (!target.closest("[data-chat-menu]") && !target.closest("#chat-menu")) sidebar.closeMenu();
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(target) || target.closest(".menu-item")) menu.removeAttribute("open");
  }
  for (const [selector, handle] of Object.entries(clicks)) {
    const found = /** @type {HTMLElement | null} */ (target.closest(selector));
    if (found) handle(found);
  }
});

document.addEventListener("keydown", (event) => key(event, chat));
for (const reached of ["pointerover", "focusin"]) document.addEventListener(reached, placeTip);
document.addEventListener("focusout", (event) => {
  const form = /** @type {HTMLFormElement | null} */ (/** @type {Element} */ (event.target).closest("[data-rename]"));
  if (form?.isConnected) sidebar.endRenaming(form, true);
});
document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLElement} */ (event.target);
  if (form.dataset.rename) form.dataset.ended = "1";
});

// -- htmx ---------------------------------------------------------------------------------------------

document.addEventListener("htmx:configRequest", (/** @type {any} */ event) => {
  event.detail.headers["X-CSRFToken"] = csrfToken();
});
document.addEventListener("htmx:beforeSwap", (/** @type {any} */ event) => {
  const { xhr, pathInfo, target } = event.detail;
  // A title is being typed there; the list is asked for again with the next news.
  if (target?.id === "chats" && target.querySelector(".renaming")) event.detail.shouldSwap = false;
  // A redirect leads to the login page: as a page, not as a part of this one.
  if (xhr.responseURL && new URL(xhr.responseURL).pathname !== new URL(pathInfo.requestPath, location.href).pathname) {
    event.detail.shouldSwap = false;
    location.assign(xhr.responseURL);
  }
});
document.addEventListener("htmx:afterRequest", (/** @type {any} */ event) => {
  const { elt, successful } = event.detail;
  const id = elt.matches?.("[data-rename]") && successful && elt.dataset.rename.split("/")[2];
  if (chat && id === chat.conversation) chat.title(elt.elements.title.value.trim());
});
for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(failure, (/** @type {any} */ event) => {
    const { target, pathInfo } = event.detail;
    // The page's own error page says what is wrong, and has an address to reload.
    if (target?.id === "main") location.assign(pathInfo.requestPath);
    else sidebar.listFailed();
  });
}
document.addEventListener("htmx:afterSettle", show);
document.addEventListener("htmx:historyRestore", show);
document.addEventListener("htmx:afterSwap", chatlist.mark);
document.addEventListener("chat:shown", chatlist.mark);
document.addEventListener("chat:back", chatlist.reload);
document.addEventListener("chat:news", (/** @type {any} */ event) => chatlist.tell(event.detail));

htmx.config.allowEval = false;
show();
