/** One answer that is being written: its stream's state, its text, and the line that says why nothing comes. */
import { announce } from "./announce.js";
import { Prose } from "./prose.js";
import { apply, begin, line } from "./stream.js";
import { part } from "./turns.js";
import { word } from "./words.js";

const QUIET_MS = 300; // an answer that begins sooner needs no "Thinking"

export class Answer {
  /**
   * @param {HTMLElement} turn
   * @param {object} on
   * @param {() => void} on.change  the page grew
   * @param {(answer: Answer) => void} on.end  it ended, or its stream broke off: ask the server
   */
  constructor(turn, on) {
    this.turn = turn;
    this.on = on;
    this.stream = begin("");
    this.state = part(turn, "state");
    this.prose = new Prose(part(turn, "text"), { change: on.change, block: announce });
    this.prose.element.classList.add("waiting");
    this.said = this.spoken = "";
    this.timer = setTimeout(() => this.say(), QUIET_MS);
  }

  /** The server knows it now. @param {string} generation @param {import("./stream.js").Stream} [stream] what came so far */
  named(generation, stream = begin(generation)) {
    this.stream = stream;
    this.turn.dataset.generation = generation;
    if (stream.text) this.write(stream.text);
    this.sayInstead();
    if (this.hasEnded) {
      this.end();
      this.on.end(this);
    }
  }

  get generation() {
    return this.stream.generation;
  }

  get hasEnded() {
    return this.stream.phase === "ended";
  }

  /** @param {import("./stream.js").Event} event */
  take(event) {
    const before = this.stream;
    const [stream, change] = apply(before, event);
    this.stream = stream;
    if (change === "text") this.write(stream.text.slice(before.text.length));
    if (change === "reset") this.rewrite(stream.text);
    if (stream.instead !== before.instead) this.sayInstead();
    if (change === "phase" || change === "text") this.say();
    if (change === "end") this.end();
    if (change === "end" || change === "broken") this.on.end(this);
  }

  /** @param {string} text */
  write(text) {
    this.prose.element.classList.remove("waiting");
    this.prose.append(text);
  }

  /** @param {string} text */
  rewrite(text) {
    this.prose.clear();
    this.write(text);
  }

  /** The line below the text. It is spoken for another state or place, not for each new guess of the seconds. */
  say() {
    const found = line(this.stream);
    const text = found ? word(found.key, { ...found, place: ordinal(found.place) }) : "";
    if (text === this.said) return;
    this.said = text;
    this.state.textContent = text;
    this.state.hidden = !text;
    const spoken = `${found?.key} ${found?.place}`;
    if (found && found.key !== "thinking" && spoken !== this.spoken) announce(text);
    this.spoken = spoken;
    this.on.change();
  }

  /** The line under the text that names who answers instead; the server's page has it already. */
  sayInstead() {
    if (!this.stream.instead || this.turn.querySelector("[data-instead]")) return;
    const note = document.createElement("p");
    note.className = "note muted";
    note.dataset.instead = "";
    note.textContent = word("instead", this.stream.instead);
    this.prose.element.after(note);
    announce(note.textContent);
    this.on.change();
  }

  end() {
    clearTimeout(this.timer);
    this.say();
    this.prose.finish();
    const words = { cancelled: "stopped", error: "failed", limit_reached: "cut" };
    announce(word(words[/** @type {keyof typeof words} */ (this.stream.reason)] ?? "complete"));
  }

  /** It will not come: the request failed, or the page shows something else. */
  drop() {
    clearTimeout(this.timer);
    this.stream.phase = "ended";
  }
}

/** @param {number | undefined} place  1 = first */
function ordinal(place) {
  if (!place) return "";
  return word("places").split(",")[place - 1] ?? word("place_number", { number: place });
}
