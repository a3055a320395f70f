/** What went wrong, in words, and what to do about it. */
import { Failed } from "./api.js";
import { limitWords } from "./limits.js";
import { word } from "./words.js";

/** Of the chat that is shown. */
function page() {
  return /** @type {HTMLElement | null} */ (document.querySelector("[data-chat]"))?.dataset ?? {};
}

/** No session, or a CSRF token of an earlier one. @param {Failed} error */
function isLoggedOut(error) {
  return error.status === 401 || error.code === "permission_denied";
}

/** Whether the same once more may go well. @param {Failed} error */
function isPassing(error) {
  const isLimit = error.facts.limit_kind !== undefined;
  return error.status === 0 || error.status === 409 || error.status >= 500 || (error.status === 429 && !isLimit);
}

/** @param {unknown} error */
export function wordsFor(error) {
  if (!(error instanceof Failed)) throw error;
  const { facts } = error;
  if (error.status === 0) return word("not_sent");
  if (error.code === "answer_running") return word("busy");
  if (isLoggedOut(error)) return word("logged_out");
  if (facts.limit_kind) {
    const locale = document.documentElement.lang;
    return limitWords(facts, { say: word, locale, zone: page().zone ?? "UTC", now: new Date() });
  }
  if (error.code === "context_length_exceeded") return word("too_long", { tokens: facts.tokens, limit: facts.limit });
  if (error.status === 429 && error.retryAfter) return error.message || word("wait", { seconds: error.retryAfter });
  if (error.status >= 500) return word("unavailable");
  return error.message || word("failed_request");
}

/**
 * The words and what to do: log in, see the usage and get more, try again; nothing where the message must change.
 * @param {unknown} error @param {() => void} retry
 * @returns {Node[]}
 */
export function explain(error, retry) {
  const parts = [document.createTextNode(`${wordsFor(error)} `), ...acts(/** @type {Failed} */ (error), retry)];
  return parts.flatMap((part, n) => (n > 1 ? [document.createTextNode(" · "), part] : [part]));
}

/** @param {Failed} error @param {() => void} retry @returns {Node[]} */
function acts(error, retry) {
  const { usage, upgrade } = page();
  if (isLoggedOut(error)) return [link(`/accounts/login/?next=${encodeURIComponent(location.pathname)}`, "log_in")];
  if (error.facts.limit_kind) return [...(usage ? [link(usage, "see_usage")] : []), ...(upgrade ? [link(upgrade, "upgrade")] : [])];
  if (!isPassing(error)) return [];
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = word("retry");
  button.addEventListener("click", retry);
  return [button];
}

/** @param {string} href @param {string} key */
function link(href, key) {
  const made = document.createElement("a");
  made.href = href;
  made.textContent = word(key);
  return made;
}
