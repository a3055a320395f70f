/** The chat's WebSocket: resumes every answer that is being written, and says when there is no connection. */
import { call, Failed } from "./api.js";
import { Socket } from "./socket.js";
import { word } from "./words.js";

const LOST_MS = 1500; // a connection that is back sooner was never missed
const ASK_AFTER = 3; // refused tries after which the API is asked why

/** @typedef {import("./stream.js").Stream} Stream */

export class Connection {
  /**
   * @param {HTMLElement} bar
   * @param {object} chat
   * @param {() => string} chat.conversation  empty: none yet
   * @param {() => Stream[]} chat.streams  those that are being written
   * @param {(event: any) => void} chat.event
   * @param {() => void} chat.opened
   * @param {() => void} chat.gone
   */
  constructor(bar, chat) {
    this.bar = bar;
    this.chat = chat;
    this.timer = 0;
    /** @type {Socket | null} */
    this.socket = null;
    if (!navigator.onLine) this.show("offline");
  }

  /** Open, or change to the conversation that now exists. */
  open() {
    this.socket?.close();
    this.socket = new Socket({
      url: () => this.url(),
      onEvent: this.chat.event,
      onOpen: (isBack) => {
        this.chat.streams().forEach((stream) => this.resume(stream));
        this.chat.opened();
        if (isBack) document.dispatchEvent(new CustomEvent("chat:back")); // news may have been missed
      },
      onState: (state) => this.show(state),
      onRefused: (tries) => tries % ASK_AFTER === 0 && this.why(),
    });
  }

  close() {
    clearTimeout(this.timer);
    this.socket?.close();
    this.socket = null;
  }

  /** Ask for the rest of a stream; one that this socket follows already goes on as it is. @param {Stream} stream */
  resume({ generation, seq }) {
    if (generation) this.socket?.send({ type: "resume", generation, last_seq_id: seq });
  }

  url() {
    const root = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
    const conversation = this.chat.conversation();
    if (!conversation) return `${root}/user`;
    // Named here, the newest answer comes with the handshake, a round trip earlier.
    const stream = this.chat.streams().findLast((known) => known.generation);
    const position = stream ? `?generation=${stream.generation}&last_seq_id=${stream.seq}` : "";
    return `${root}/conversations/${conversation}${position}`;
  }

  /** @param {import("./socket.js").State} state */
  show(state) {
    clearTimeout(this.timer);
    this.timer = 0;
    if (state === "open") this.bar.hidden = true;
    else if (state === "offline") this.say(word("offline"));
    else this.timer = setTimeout(() => this.say(word("reconnecting")), LOST_MS);
  }

  /** @param {string} text */
  say(text) {
    this.bar.textContent = text;
    this.bar.hidden = false;
  }

  /** A refused handshake does not say why: the session may have ended, the chat may be gone. */
  async why() {
    const conversation = this.chat.conversation();
    try {
      await call("GET", conversation ? `conversations/${conversation}` : "models");
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      if (error.status === 404) this.chat.gone();
      if (error.status === 401 || error.status === 403) this.loggedOut();
    }
  }

  loggedOut() {
    this.close();
    const link = document.createElement("a");
    link.href = `/accounts/login/?next=${encodeURIComponent(location.pathname)}`;
    link.textContent = word("log_in");
    this.bar.replaceChildren(`${word("logged_out")} `, link);
    this.bar.hidden = false;
  }
}
