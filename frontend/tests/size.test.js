/**
 * First load: all script and style that a chat with coloured code loads, compressed, stays within 150 KB; the charts,
 * which the usage page loads beside it, within 80 KB.
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const DIST = new URL("../../static/dist/", import.meta.url);
const LIMIT = 150 * 1000;
const CHARTS = "usage.js";
const CHARTS_LIMIT = 80 * 1000;

test("script and style are at most 150 KB compressed", (context) => {
  const sizes = readdirSync(DIST)
    .filter((name) => /\.(js|css)$/.test(name))
    .map((name) => [name, gzipSync(readFileSync(new URL(name, DIST))).length]);
  for (const [name, size] of sizes) context.diagnostic(`${name}: ${size} bytes`);
  const charts = sizes.find(([name]) => name === CHARTS)?.[1];
  assert.ok(charts && charts <= CHARTS_LIMIT, `${charts} bytes`);
  const all = sizes.reduce((sum, [name, size]) => sum + (name === CHARTS ? 0 : size), 0);
  context.diagnostic(`together: ${all} bytes`);
  assert.ok(sizes.length > 1 && all <= LIMIT, `${all} bytes`);
});
