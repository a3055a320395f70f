/**
 * PURE: one answer as its reader knows it, and what each event of the stream makes of that.
 *
 * The server keeps order and completeness within one socket (neighbouring frames may come as one event, so that `seq`
 * may jump); here we drop what an overlap of two sockets repeats.
 */

/** @typedef {"waiting" | "queued" | "starting" | "unserved" | "running" | "moved" | "ended"} Phase */
/**
 * @typedef {object} Stream
 * @property {string} generation
 * @property {number} seq  frames of the token log that `text` holds: where to resume
 * @property {string} text
 * @property {Phase} phase
 * @property {number | null} place  in the queue, 1 = next
 * @property {number | null} eta  seconds
 * @property {string | null} reason  finish_reason, once ended
 * @property {{model: string, asked: string} | null} instead  who answers in the place of a busy model
 */
/** @typedef {"none" | "text" | "reset" | "phase" | "end" | "broken"} Change */
/** @typedef {{event: string, generation?: string, seq?: number, [key: string]: any}} Event */

/** @param {string} generation @returns {Stream} */
export function begin(generation) {
  return { generation, seq: 0, text: "", phase: "waiting", place: null, eta: null, reason: null, instead: null };
}

/**
 * What `event` makes of `stream`. "text": something was added at the end; "reset": the text is another one; "broken":
 * the stream ended, but not the answer: resume. Events of a kind that is not known change nothing.
 * @param {Stream} stream
 * @param {Event} event
 * @returns {[Stream, Change]}
 */
export function apply(stream, event) {
  if (event.generation !== stream.generation || stream.phase === "ended") return [stream, "none"];
  const seq = event.seq ?? 0;
  switch (event.event) {
    case "queued":
      return [{ ...stream, ...place(event) }, "phase"];
    case "started":
      return [{ ...stream, phase: "running", instead: instead(event) }, "phase"];
    case "status":
      return event.moved ? [{ ...stream, phase: "moved" }, "phase"] : [stream, "none"];
    case "delta":
      if (seq <= stream.seq) return [stream, "none"];
      return [{ ...stream, seq, phase: "running", text: stream.text + event.text }, "text"];
    case "snapshot":
      return snapshot(stream, seq, event.text);
    case "done":
      return [{ ...stream, phase: "ended", reason: event.finish_reason }, "end"];
    case "error":
      // The end of an answer is counted; a stream that merely broke off is not.
      if (!event.usage) return [stream, "broken"];
      return [{ ...stream, phase: "ended", reason: "error" }, "end"];
    default:
      return [stream, "none"];
  }
}

/** A whole text: mostly ours and what we have missed. @returns {[Stream, Change]} */
function snapshot(/** @type {Stream} */ stream, /** @type {number} */ seq, /** @type {string} */ text) {
  const next = { ...stream, seq, text, phase: /** @type {Phase} */ ("running") };
  if (text === stream.text) return [next, "none"];
  return [next, text.startsWith(stream.text) ? "text" : "reset"];
}

/** @param {Event} event @returns {Stream["instead"]} */
function instead(event) {
  return event.instead_of ? { model: event.model, asked: event.instead_of } : null;
}

/** @param {Event} event @returns {Pick<Stream, "phase" | "place" | "eta">} */
function place(event) {
  const phase = event.workers === "starting" ? "starting" : event.workers === "none" ? "unserved" : "queued";
  return { phase, place: event.position ?? null, eta: event.eta_seconds ?? null };
}

/**
 * The line under an answer that has no text yet, as a key of the words and its values; null: none.
 * @param {Stream} stream
 * @returns {{key: string, place?: number, seconds?: number} | null}
 */
export function line(stream) {
  switch (stream.phase) {
    case "waiting":
      return { key: "thinking" };
    case "queued":
      if (stream.place === null) return { key: "queued" };
      if (stream.eta === null) return { key: "queued_at", place: stream.place };
      return { key: "queued_eta", place: stream.place, seconds: Math.max(1, Math.round(stream.eta)) };
    case "starting":
      return { key: "starting" };
    case "unserved":
      return { key: "no_worker" };
    case "moved":
      return { key: "moved" };
    case "running":
      return stream.text ? null : { key: "thinking" };
    default:
      return null;
  }
}
