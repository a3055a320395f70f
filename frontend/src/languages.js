/** The languages that are coloured: a chunk of its own, loaded when the first one appears. */
export { default } from "highlight.js/lib/common";
