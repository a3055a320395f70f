import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks } from "../src/blocks.js";
import { makeMarkdown } from "../src/markdown.js";

const md = makeMarkdown();

const SAMPLES = {
  prose: "# Title\n\nA *line* with `code`\nand another.\n\nSetext\n===\n\nText\n---\n\n***\n\nEnd.",
  lists: "Intro:\n- one\n- two\n\n  still two\n\n      code in two\n* other\n**bold** lazy\n\n1. a\n   - b\n     - c\n2. d\n\nEnd",
  code: "Look:\n\n```python\ndef f():\n\n    return '# no title'\n```\nafter\n\n    indented\n\n    code\n\n~~~\nnever closed\n\n- x",
  table: "Before\na | b\n--|:-:\n1 | 2\n3 | **4**\n\nAfter | not a table\n\n|x|\n|-|\n|y|\n> quote\nlazy\n\n> more",
  links: "[one]: https://example.org 'T'\n\nSee [one] and https://example.com/x, [two][one].\n\n![pic](https://e.org/a.png)",
  breaks: "a\r\nb\r\rc\n\n\n\nd\r\n\r\n- e\r\n- f\r\n",
  odd: "*\n\n-\n\n+\n\n>\n\n1.\n\n#\n\n```\n```\n\n<b>raw</b>\n\n<div>\n\nx\n\n</div>\n\n&amp; \\* 👩‍👩‍👧 日本語",
  refs: "Text\n\n[a]: <\n\n[b]:\n/url\n\n[b] there",
};

/** Feed `text` in pieces of these lengths (repeated); the whole HTML, and what was finished before the end. */
function feed(text, lengths) {
  const blocks = new Blocks(md);
  const finished = [];
  for (let at = 0, n = 0; at < text.length; n++) {
    const length = lengths[n % lengths.length];
    finished.push(...blocks.push(text.slice(at, at + length)));
    blocks.open(); // looking at the rest must not change it
    at += length;
  }
  const early = finished.length;
  return { html: finished.join("") + blocks.finish(), early };
}

for (const [name, text] of Object.entries(SAMPLES)) {
  test(`${name}: however it is divided, the HTML is that of the whole`, () => {
    const whole = md.render(text);
    for (const lengths of [[1], [2], [3], [7], [1, 13], [5, 1, 2], [40], [10_000]]) {
      assert.equal(feed(text, lengths).html, whole, `pieces of ${lengths}`);
    }
  });
}

test("finished blocks are handed out once, while the text still grows", () => {
  const { early } = feed("One.\n\nTwo.\n\n- three\n\nFour.\n", [1]);
  assert.equal(early, 3);
});

test("the rest stays small: a long answer is not parsed again and again", () => {
  const blocks = new Blocks(md);
  let longest = 0;
  for (let n = 0; n < 500; n++) {
    blocks.push(`Paragraph number ${n} with some words.\n\n`);
    longest = Math.max(longest, blocks.rest.length);
  }
  assert.ok(longest < 200, `${longest} characters`);
});

test("half a line decides nothing", () => {
  const blocks = new Blocks(md);
  assert.deepEqual(blocks.push("- a\n*"), []);
  assert.deepEqual(blocks.push("*bold** goes on in the item\n"), []);
  assert.match(blocks.finish(), /<li>a\s*<strong>bold<\/strong> goes on/);
});
