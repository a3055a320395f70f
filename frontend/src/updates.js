/** What happened to the chat elsewhere: on another page of its person, or while this one was not connected. */
import { call, Failed, markup } from "./api.js";
import { explain } from "./failures.js";

const CHECK_MS = 500; // by then the server subscribed a new socket to the news
const SOON_MS = 100; // several reasons to look are one look

export class Updates {
  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this.chat = chat;
    this.updated = Date.parse(chat.page.dataset.updated ?? "");
    this.leaving = new AbortController();
    document.addEventListener("visibilitychange", () => this.check(), { signal: this.leaving.signal });
  }

  close() {
    this.leaving.abort();
    clearTimeout(this.timer);
  }

  /** The news of all the person's chats. @param {any} event */
  news(event) {
    const { chat } = this;
    document.dispatchEvent(new CustomEvent("chat:news", { detail: event }));
    if (event.conversation !== chat.conversation) return;
    if (event.change === "deleted") chat.gone();
    if (event.title) chat.title(event.title);
    if (event.change === "answering" && !chat.knows(event.generation) && !chat.sending) this.refreshSoon();
  }

  /** A socket was opened. */
  opened() {
    setTimeout(() => this.check(), CHECK_MS);
  }

  /** News are hints that may be lost: has anyone written here since the page was made, or last looked? */
  async check() {
    const { chat } = this;
    if (!chat.started || document.hidden || chat.isRunning) return;
    const found = await call("GET", `conversations/${chat.conversation}`).catch(() => null); // the socket says it
    if (!found || chat.isRunning) return;
    const updated = Date.parse(found.updated_at);
    if (updated > this.updated) this.refresh();
    this.updated = updated;
  }

  refreshSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), SOON_MS);
  }

  /** Show the branch as the server has it; texts that stay are left alone. @param {string} [leaf] */
  async refresh(leaf) {
    const { chat } = this;
    if (leaf) history.replaceState({ htmx: true }, "", `${location.pathname}?leaf=${leaf}`);
    try {
      const page = await markup(location.pathname + location.search, { "HX-Target": "main" });
      if (!chat.page.isConnected || chat.sending) return;
      chat.turns.reconcile(/** @type {HTMLElement[]} */ ([...page.querySelectorAll("[data-turns] > li")]));
    } catch (error) {
      if (error instanceof Failed && error.status === 404) return chat.gone();
      return chat.composer.fail(...explain(error, () => this.refresh(leaf)));
    }
    chat.attach();
    chat.follow.update();
  }
}
