/** First load: all script and style that a chat with coloured code loads, compressed, stays within 200 KB. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const DIST = new URL("../../static/dist/", import.meta.url);
const LIMIT = 200 * 1000;

test("script and style are at most 200 KB compressed", (context) => {
  const sizes = readdirSync(DIST)
    .filter((name) => /\.(js|css)$/.test(name))
    .map((name) => [name, gzipSync(readFileSync(new URL(name, DIST))).length]);
  for (const [name, size] of sizes) context.diagnostic(`${name}: ${size} bytes`);
  const all = sizes.reduce((sum, [, size]) => sum + size, 0);
  context.diagnostic(`together: ${all} bytes`);
  assert.ok(sizes.length > 1 && all <= LIMIT, `${all} bytes`);
});
