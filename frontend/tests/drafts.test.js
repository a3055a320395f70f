import assert from "node:assert/strict";
import { test } from "node:test";
import { Drafts } from "../src/drafts.js";

/** As localStorage: items are properties, methods are not. */
function storage(items = {}) {
  const methods = {
    getItem: (key) => made[key] ?? null,
    setItem: (key, value) => void (made[key] = value),
    removeItem: (key) => void delete made[key],
  };
  const made = Object.assign(Object.create(methods), items);
  return made;
}

test("a draft is kept for each chat, and forgotten when it is empty", () => {
  const store = storage();
  const drafts = new Drafts(store, "ada");
  drafts.write("", "new");
  drafts.write("c1", "one");
  assert.deepEqual([new Drafts(store, "ada").read(""), drafts.read("c1"), drafts.read("c2")], ["new", "one", ""]);
  drafts.write("c1", "");
  assert.deepEqual(Object.keys(store), ["draft:ada:new"]);
});

test("another person's drafts do not stay", () => {
  const store = storage({ "draft:bob:new": "secret", other: "kept" });
  new Drafts(store, "ada");
  assert.deepEqual(Object.keys(store), ["other"]);
});

test("a full storage is no error", () => {
  const store = storage();
  Object.getPrototypeOf(store).setItem = () => {
    throw new Error("full");
  };
  new Drafts(store, "ada").write("c", "text");
});
