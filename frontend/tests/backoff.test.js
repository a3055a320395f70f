import assert from "node:assert/strict";
import { test } from "node:test";
import { delay, FIRST_MS, LONGEST_MS } from "../src/backoff.js";

test("waits double up to a limit, and half of each is random", () => {
  assert.equal(delay(0, 1), FIRST_MS);
  assert.equal(delay(0, 0), FIRST_MS / 2);
  assert.equal(delay(3, 1), FIRST_MS * 8);
  assert.equal(delay(60, 1), LONGEST_MS);
});
