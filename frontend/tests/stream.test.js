import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, begin, line } from "../src/stream.js";

const G = "0b8f7a2e";
/** What a reader knows after these events, and the changes that they made. */
function after(...events) {
  const changes = [];
  let stream = begin(G);
  for (const event of events) {
    let change;
    [stream, change] = apply(stream, { generation: G, ...event });
    changes.push(change);
  }
  return { ...stream, changes };
}

test("deltas add up, and what an overlap repeats is dropped", () => {
  const found = after(
    { event: "delta", seq: 1, text: "One " },
    { event: "delta", seq: 3, text: "two three " }, // two frames as one event
    { event: "delta", seq: 2, text: "two " },
    { event: "delta", seq: 3, text: "two three " },
    { event: "delta", seq: 4, text: "four" },
  );
  assert.equal(found.text, "One two three four");
  assert.equal(found.seq, 4);
  assert.deepEqual(found.changes, ["text", "text", "none", "none", "text"]);
});

test("a snapshot that goes on from what is known only adds", () => {
  const found = after({ event: "delta", seq: 2, text: "One " }, { event: "snapshot", seq: 5, text: "One two" });
  assert.deepEqual([found.text, found.seq, found.changes.at(-1)], ["One two", 5, "text"]);
});

test("a snapshot with another text replaces it, also at a lower position", () => {
  const found = after({ event: "delta", seq: 9, text: "Old" }, { event: "snapshot", seq: 2, text: "New" });
  assert.deepEqual([found.text, found.seq, found.changes.at(-1)], ["New", 2, "reset"]);
});

test("a counted end is the end: nothing after it changes anything", () => {
  const found = after(
    { event: "delta", seq: 1, text: "Hi" },
    { event: "done", seq: 1, finish_reason: "cancelled", usage: {} },
    { event: "delta", seq: 2, text: " there" },
  );
  assert.deepEqual([found.text, found.phase, found.reason], ["Hi", "ended", "cancelled"]);
  assert.deepEqual(found.changes, ["text", "end", "none"]);
});

test("a failed answer ends; a stream that broke off is to be resumed", () => {
  assert.equal(after({ event: "error", seq: 0, code: "engine", usage: { total_tokens: 1 } }).phase, "ended");
  const broken = after({ event: "delta", seq: 4, text: "x" }, { event: "error", seq: 4, code: "unavailable" });
  assert.deepEqual([broken.phase, broken.seq, broken.changes.at(-1)], ["running", 4, "broken"]);
});

test("events of other generations, and unknown ones, change nothing", () => {
  const stream = begin(G);
  assert.deepEqual(apply(stream, { event: "delta", generation: "other", seq: 1, text: "x" }), [stream, "none"]);
  assert.deepEqual(apply(stream, { event: "tool_call", generation: G, seq: 1 }), [stream, "none"]);
});

test("the line says why nothing comes", () => {
  const says = (...events) => line(after(...events));
  assert.deepEqual(says(), { key: "thinking" });
  const queued = { event: "queued", position: 3, eta_seconds: 7.6, workers: "ready" };
  assert.deepEqual(says(queued), { key: "queued_eta", place: 3, seconds: 8 });
  assert.deepEqual(says({ ...queued, eta_seconds: null }), { key: "queued_at", place: 3 });
  assert.deepEqual(says({ ...queued, workers: "starting" }), { key: "starting" });
  assert.deepEqual(says({ ...queued, workers: "none" }), { key: "no_worker" });
  assert.deepEqual(says(queued, { event: "started", model: "m" }), { key: "thinking" });
  assert.equal(says({ event: "delta", seq: 1, text: "x" }), null);
  const moved = { event: "status", moved: true };
  assert.deepEqual(says({ event: "delta", seq: 1, text: "x" }, moved), { key: "moved" });
  assert.equal(says(moved, { event: "delta", seq: 1, text: "x" }), null);
});

test("who answers instead of a busy model is told with the start", () => {
  assert.equal(after({ event: "started", model: "m" }).instead, null);
  const started = after({ event: "started", model: "small", instead_of: "large" }, { event: "delta", seq: 1, text: "x" });
  assert.deepEqual(started.instead, { model: "small", asked: "large" });
});
