/** The chat on the page: its turns, its composer, its stream. One for each conversation that is shown. */
import { Answer } from "./answer.js";
import { call, Failed, markup, uuid } from "./api.js";
import { announce } from "./announce.js";
import { tell } from "./chatlist.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Drafts } from "./drafts.js";
import { editForm } from "./editing.js";
import { explain } from "./failures.js";
import { Follow } from "./follow.js";
import { ask, request, start } from "./sending.js";
import { apply, begin } from "./stream.js";
import { part, Turns } from "./turns.js";
import { Updates } from "./updates.js";
import { word } from "./words.js";

const AGAIN_MS = 1500; // a stream broke off though its answer goes on

export class Chat {
  /** @param {HTMLElement} page */
  constructor(page) {
    this.page = page;
    this.conversation = page.dataset.conversation ?? "";
    this.started = Boolean(this.conversation);
    this.turns = new Turns(page);
    /** @type {Map<string, Answer>} */
    this.answers = new Map(); // by generation: those that are being written
    /** @type {Map<string, import("./stream.js").Stream>} */
    this.strays = new Map(); // what came for a generation before the page had its turn
    /** @type {import("./sending.js").Request | null} */
    this.failed = null; // the request that got no answer
    this.sending = false;
    this.stopWanted = false;
    this.drafts = new Drafts(localStorage, page.dataset.user ?? "");
    this.composer = new Composer(page, {
      send: (text) => this.send(text),
      stop: () => this.stop(),
      editLast: () => this.turns.lastQuestion && this.edit(this.turns.lastQuestion),
      draft: (text) => this.drafts.write(this.conversation, text),
      model: (model) => this.choose(model),
    });
    if (!this.composer.text) this.composer.text = this.drafts.read(this.conversation);
    this.composer.buttons();
    this.follow = new Follow(this.box("scroll"), this.box("jump"));
    this.connection = new Connection(this.box("connection"), {
      conversation: () => (this.started ? this.conversation : ""),
      streams: () => [...this.answers.values()].map((answer) => answer.stream),
      event: (event) => this.take(event),
      opened: () => this.updates.opened(),
      gone: () => this.gone(),
    });
    this.updates = new Updates(this);
    this.attach();
    this.connection.open();
  }

  /** @param {string} name @returns {HTMLElement} */
  box(name) {
    return /** @type {HTMLElement} */ (this.page.querySelector(`[data-${name}]`));
  }

  close() {
    this.updates.close();
    this.connection.close();
    this.follow.close();
    for (const answer of this.answers.values()) answer.drop();
    this.answers.clear();
  }

  get isRunning() {
    return this.sending || this.answers.size > 0;
  }

  // -- asking ---------------------------------------------------------------------------------

  /** @param {string} text */
  send(text) {
    const leaf = this.turns.last?.dataset.message ?? null;
    const wanted = request("send", leaf, text, this.failed);
    this.composer.text = "";
    return this.request(wanted, undefined, [this.turns.question(wanted.id, text)], (error) => {
      if (!this.composer.text) this.composer.text = text;
      this.composer.fail(...explain(error, () => this.composer.submit()));
    });
  }

  /** Another version of a person's turn. @param {HTMLElement} turn @param {string} text @param {(error: unknown) => void} failed */
  resend(turn, text, failed) {
    const wanted = request("edit", turn.dataset.message ?? "", text, this.failed);
    return this.request(wanted, turn, [this.turns.question(wanted.id, text)], failed);
  }

  /** Another answer. @param {HTMLElement} turn */
  regenerate(turn) {
    const wanted = request("regenerate", turn.dataset.message ?? "", "", this.failed);
    return this.request(wanted, turn, [], (error) => {
      this.composer.fail(...explain(error, () => this.regenerate(turn)));
    });
  }

  /**
   * Show what was asked for at once; ask; follow the answer, or take it back.
   * @param {import("./sending.js").Request} wanted
   * @param {HTMLElement | undefined} replaced  the first turn that gives way
   * @param {HTMLElement[]} questions
   * @param {(error: unknown) => void} failed
   */
  async request(wanted, replaced, questions, failed) {
    if (this.isRunning) return;
    this.sending = true;
    this.stopWanted = false;
    this.composer.clearError();
    const turn = this.turns.answer();
    const undo = this.turns.exchange(replaced, [...questions, turn]);
    const answer = this.watch(turn);
    this.changed();
    this.follow.jump();
    announce(word("sent"));
    try {
      await this.begin();
      const sent = await ask(this.conversation, wanted);
      this.failed = null;
      this.accepted(sent, answer, wanted);
    } catch (error) {
      this.failed = wanted;
      answer.drop();
      undo();
      failed(error);
      // Someone else wrote here meanwhile: show that.
      if (error instanceof Failed && error.status === 409) this.updates.refresh();
    } finally {
      this.sending = false;
      this.changed();
    }
  }

  /** The conversation itself, before its first message. */
  async begin() {
    if (this.started) return;
    this.conversation ||= uuid();
    await start(this.conversation, this.composer.model);
    this.started = true;
    this.drafts.write("", "");
    history.replaceState({ htmx: true }, "");
    history.pushState({ htmx: true }, "", `/c/${this.conversation}`);
    this.page.dataset.conversation = this.conversation;
    document.dispatchEvent(new CustomEvent("chat:shown"));
    this.connection.open();
  }

  /** @param {any} sent @param {Answer} answer @param {import("./sending.js").Request} wanted */
  accepted(sent, answer, wanted) {
    if (wanted.kind === "send") this.drafts.write(this.conversation, this.composer.text);
    answer.turn.dataset.message = sent.assistant_message.id;
    this.name(answer, sent.generation.id);
    this.connection.resume(answer.stream);
    // The shown branch is the newest one again.
    if (location.search) history.replaceState({ htmx: true }, "", location.pathname);
    if (this.stopWanted) this.stop();
    // Our own acts need no news: those may be lost, above all while the socket changes.
    tell({ conversation: this.conversation, change: "answering" });
    if (wanted.kind !== "regenerate") this.look(sent.user_message.id);
  }

  stop() {
    this.stopWanted = this.sending;
    if (!this.answers.size) return;
    call("POST", `conversations/${this.conversation}/cancel`).catch((error) => {
      this.composer.fail(...explain(error, () => this.stop()));
    });
  }

  /** @param {HTMLElement} turn */
  edit(turn) {
    if (!this.isRunning) editForm(this, turn);
  }

  /** @param {string} model */
  choose(model) {
    if (!this.started) return;
    call("PATCH", `conversations/${this.conversation}`, { model_version: model }).catch((error) => {
      this.composer.fail(...explain(error, () => this.choose(model)));
    });
  }

  // -- the stream -----------------------------------------------------------------------------

  /** @param {HTMLElement} turn */
  watch(turn) {
    return new Answer(turn, { change: () => this.follow.update(), end: (answer) => this.ended(answer) });
  }

  /** Follow what the page says is being written, and nothing that it no longer shows. */
  attach() {
    for (const [generation, answer] of this.answers) if (!answer.turn.isConnected) this.forget(generation, answer);
    for (const turn of this.turns.all) {
      const generation = turn.dataset.generation;
      if (!generation || this.answers.has(generation)) continue;
      this.name(this.watch(turn), generation);
    }
    for (const answer of this.answers.values()) this.connection.resume(answer.stream);
    this.changed();
  }

  /** Whether this answer is, or was last, on the page. @param {string} generation */
  knows(generation) {
    return this.answers.has(generation) || generation === this.lastEnded;
  }

  /** The server follows the newest answer by itself, so that some of this one may be here already. */
  name(/** @type {Answer} */ answer, /** @type {string} */ generation) {
    this.answers.set(generation, answer);
    answer.named(generation, this.strays.get(generation));
    this.strays.delete(generation);
  }

  /** @param {any} event */
  take(event) {
    if (event.event === "chats") return this.updates.news(event);
    if (!event.generation) return this.updates.refreshSoon(); // a frame of ours was refused: what it named is gone
    const { generation } = event;
    const answer = this.answers.get(generation);
    if (answer) answer.take(event);
    else if (!this.knows(generation)) {
      const isNew = !this.strays.has(generation);
      this.strays.set(generation, apply(this.strays.get(generation) ?? begin(generation), event)[0]);
      if (isNew && !this.sending) this.updates.refreshSoon();
    }
  }

  /** @param {string} title */
  title(title) {
    this.box("title").textContent = title;
    document.title = title;
  }

  /** An answer ended, or its stream broke off: the server's turn tells which. @param {Answer} answer */
  async ended(answer) {
    const id = answer.turn.dataset.message ?? "";
    if (answer.hasEnded) {
      this.answers.delete(answer.generation);
      this.lastEnded = answer.generation;
      this.changed();
    } else {
      setTimeout(() => this.answers.has(answer.generation) && this.connection.resume(answer.stream), AGAIN_MS);
      return;
    }
    const turn = await this.look(id);
    const kept = turn?.querySelector("template[data-source]");
    const text = /** @type {HTMLTemplateElement | null} */ (kept)?.content.textContent;
    // What was streamed is what was kept; should it ever differ, the kept text is right.
    if (text != null && text !== answer.stream.text.replace(/\r\n?/g, "\n")) part(answer.turn, "text").replaceWith(part(/** @type {Element} */ (turn), "text"));
  }

  /** The server's markup of one turn, for its actions. @param {string} id */
  async look(id) {
    try {
      const next = /** @type {HTMLElement | null} */ (
        (await markup(`/c/${this.conversation}/turns/${id}`)).querySelector("[data-message]")
      );
      const turn = this.turns.find(id);
      if (next && turn) this.turns.refoot(turn, next);
      this.follow.update();
      return next;
    } catch {
      return null; // the text stands; its actions come with the next load
    }
  }

  /** @param {string} generation @param {Answer} answer */
  forget(generation, answer) {
    answer.drop();
    this.answers.delete(generation);
  }

  gone() {
    this.close();
    this.composer.running(false);
    this.composer.fail(document.createTextNode(word("gone")));
  }

  changed() {
    this.composer.running(this.isRunning);
    this.page.toggleAttribute("data-running", this.isRunning);
  }
}
