/** What went wrong, in words. */
import { Failed } from "./api.js";
import { word } from "./words.js";

/** @param {unknown} error */
export function wordsFor(error) {
  if (!(error instanceof Failed)) throw error;
  if (error.status === 0) return word("not_sent");
  if (error.code === "answer_running") return word("busy");
  if (error.status === 401 || error.status === 403) return word("logged_out");
  if (error.status === 429 && error.retryAfter) return error.message || word("wait", { seconds: error.retryAfter });
  if (error.status >= 500) return word("unavailable");
  return error.message || word("failed_request");
}

/**
 * The words and what to do about it: log in, or try again.
 * @param {unknown} error @param {() => void} retry
 * @returns {Node[]}
 */
export function explain(error, retry) {
  const text = document.createTextNode(`${wordsFor(error)} `);
  if (error instanceof Failed && (error.status === 401 || error.status === 403)) {
    const link = document.createElement("a");
    link.href = `/accounts/login/?next=${encodeURIComponent(location.pathname)}`;
    link.textContent = word("log_in");
    return [text, link];
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = word("retry");
  button.addEventListener("click", retry);
  return [text, button];
}
