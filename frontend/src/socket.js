/** One WebSocket that comes back: after a lost connection, sleep, the network's return, and the page's own return. */
import { delay } from "./backoff.js";

const ASLEEP_MS = 20_000; // a timer that is this late was asleep, and so was the connection
const TICK_MS = 5_000;
const LOGGED_OUT = 4401; // the server's close code

/** @typedef {"open" | "lost" | "offline"} State */

export class Socket {
  /**
   * @param {object} options
   * @param {() => string} options.url  asked at each try: it names the position to resume from
   * @param {(event: any) => void} options.onEvent
   * @param {(isBack: boolean) => void} options.onOpen  isBack: it was open before
   * @param {(state: State) => void} options.onState
   * @param {(tries: number) => void} options.onRefused  a try failed before the socket was open; 0: the server closed it for good
   */
  constructor({ url, onEvent, onOpen, onState, onRefused }) {
    this.url = url;
    this.onEvent = onEvent;
    this.onOpen = onOpen;
    this.onState = onState;
    this.onRefused = onRefused;
    this.attempt = 0;
    this.isClosed = false;
    this.wasOpen = false;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.timer = 0;
    this.stop = new AbortController();
    const { signal } = this.stop;
    addEventListener("online", () => this.again(), { signal });
    addEventListener("offline", () => this.onState("offline"), { signal });
    addEventListener("pageshow", (event) => event.persisted && this.again(), { signal });
    document.addEventListener("visibilitychange", () => !document.hidden && this.woke(), { signal });
    this.seen = Date.now();
    this.ticker = setInterval(() => this.woke(), TICK_MS);
    this.connect();
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** @param {object} frame  dropped while the socket is not open: what matters is sent again in onOpen */
  send(frame) {
    if (this.isOpen) this.socket?.send(JSON.stringify(frame));
  }

  close() {
    this.isClosed = true;
    this.stop.abort();
    clearInterval(this.ticker);
    clearTimeout(this.timer);
    this.drop();
  }

  connect() {
    this.drop();
    const socket = new WebSocket(this.url());
    this.socket = socket;
    let wasOpen = false;
    // A late event of an earlier socket must not be taken for one of this.
    const current = () => this.socket === socket;
    socket.onopen = () => {
      if (!current()) return;
      wasOpen = true;
      this.attempt = 0;
      this.onState("open");
      this.onOpen(this.wasOpen);
      this.wasOpen = true;
    };
    socket.onmessage = (message) => {
      if (current()) this.onEvent(JSON.parse(message.data));
    };
    socket.onclose = ({ code }) => {
      if (!current() || this.isClosed) return;
      this.socket = null;
      this.onState(navigator.onLine ? "lost" : "offline");
      if (!wasOpen) this.onRefused(this.attempt + 1);
      else if (code === LOGGED_OUT) this.onRefused(0);
      this.timer = setTimeout(() => this.connect(), delay(this.attempt++, Math.random()));
    };
  }

  drop() {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  /** Try at once, unless it works. */
  now() {
    if (this.isClosed || this.socket) return;
    this.attempt = 0;
    this.connect();
  }

  /** The connection is worthless, whatever the browser thinks of it. */
  again() {
    if (this.isClosed) return;
    this.attempt = 0;
    this.connect();
  }

  woke() {
    const away = Date.now() - this.seen;
    this.seen = Date.now();
    if (away > ASLEEP_MS && !document.hidden) this.again();
    else if (!document.hidden) this.now();
  }
}
