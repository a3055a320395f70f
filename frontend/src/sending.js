/** Asking for an answer: a message, another version of one, another answer. Repeats with the same id are harmless. */
import { call, uuid } from "./api.js";

/**
 * @typedef {object} Request
 * @property {"send" | "edit" | "regenerate"} kind
 * @property {string} id  chosen here; a repeat with it is the same request
 * @property {string | null} target  the turn that it follows (send), or is about
 * @property {string} content
 */

/**
 * A request, or `last` again when it says the same: then a repeat of one whose answer was lost does nothing twice.
 * @param {Request["kind"]} kind @param {string | null} target @param {string} content @param {Request | null} last
 * @returns {Request}
 */
export function request(kind, target, content, last = null) {
  const same = last && last.kind === kind && last.target === target && last.content === content;
  return same ? last : { kind, target, content, id: uuid() };
}

/** Raises Failed. @param {string} conversation @param {Request} wanted */
export function ask(conversation, { kind, id, target, content }) {
  const messages = `conversations/${conversation}/messages`;
  if (kind === "send") return call("POST", messages, { id, content, ...(target && { parent: target }) });
  return call("POST", `${messages}/${target}/${kind}`, kind === "edit" ? { id, content } : { id });
}

/** A chat with an id that we chose. Raises Failed. @param {string} id @param {string | undefined} model */
export function start(id, model) {
  return call("POST", "conversations", { id, ...(model && { model }) });
}
