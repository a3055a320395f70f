import assert from "node:assert/strict";
import { test } from "node:test";
import { clock, limitWords, span } from "../src/limits.js";

const READER = {
  say: (key, values = {}) => `${key}(${Object.values(values).join("|")})`,
  locale: "en",
  zone: "Europe/Zurich",
  now: new Date("2026-03-01T12:00:00Z"),
};
const FACTS = {
  limit_of: "user",
  limit_kind: "requests",
  amount: 20,
  used: 20,
  window_seconds: 10_800,
  renews_at: "2026-03-01T13:19:59.001Z",
  next_plan: { name: "Plus", amount: 2000 },
};

test("what is used up, when there is more, what the next plan gives", () => {
  assert.equal(limitWords(FACTS, READER), "limit_requests(20|0|3 hours) renews_at(14:20) next_plan(Plus|2,000)");
});

test("tokens that are left are too few", () => {
  const facts = { ...FACTS, limit_kind: "tokens", amount: 40_000, used: 39_000, window_seconds: 86_400, next_plan: undefined };
  assert.equal(limitWords(facts, READER), "limit_few(40,000|1,000|1 day) renews_at(14:20)");
  assert.match(limitWords({ ...facts, used: 41_000 }, READER), /^limit_tokens\(40,000\|0/);
});

test("a message that never fits, an organization's limit, a plan without the limit", () => {
  const facts = { ...FACTS, limit_of: "organization", limit_kind: "tokens", renews_at: undefined, next_plan: { name: "Pro", amount: null } };
  assert.equal(limitWords(facts, READER), "together_small(20|0|3 hours) next_plan_any(Pro)");
});

test("times are the reader's, the next whole minute, with the day on other days", () => {
  assert.equal(clock(new Date("2026-03-01T22:59:00Z"), READER), "23:59");
  assert.equal(clock(new Date("2026-03-01T22:59:01Z"), READER), "date_time(March 2|00:00)");
  assert.equal(clock(new Date("2026-03-01T22:59:01Z"), { ...READER, zone: "UTC" }), "23:00");
});

test("lengths are in their largest whole unit", () => {
  assert.deepEqual([60, 90, 86_400, 604_800, 2_592_000].map((s) => span(s, "en")), ["1 minute", "90 seconds", "1 day", "1 week", "30 days"]);
});
