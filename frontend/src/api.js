/** Requests to our own server, with the session and its CSRF token. */

export class Failed extends Error {
  /**
   * @param {number} status  0: no answer at all
   * @param {string} code
   * @param {string} message
   * @param {number | null} retryAfter  seconds
   * @param {Record<string, any>} [facts]  the error's body
   */
  constructor(status, code, message, retryAfter, facts = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
    this.facts = facts;
  }
}

/** The page's CSRF token. */
export function csrfToken() {
  return document.querySelector('meta[name="csrf-token"]')?.getAttribute("content") ?? "";
}

/**
 * A call of the native API. Raises Failed.
 * @param {"POST" | "PATCH" | "GET"} method
 * @param {string} path  below /api/v1/
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function call(method, path, body) {
  const response = await fetched(`/api/v1/${path}`, {
    method,
    body: body && JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
  });
  if (response.ok) return response.status === 204 ? null : response.json();
  const error = (await response.json().catch(() => ({}))).error ?? {};
  const after = Number(error.retry_after ?? response.headers.get("Retry-After")) || null;
  throw new Failed(response.status, error.code ?? "", error.message ?? "", after, error);
}

/**
 * The markup of one of our pages or partials. Raises Failed.
 * @param {string} url
 * @param {Record<string, string>} [headers]
 */
export async function markup(url, headers = {}) {
  const response = await fetched(url, { headers: { "HX-Request": "true", ...headers } });
  // Who is logged out is sent to the login page, which is no partial.
  if (response.redirected) throw new Failed(401, "not_authenticated", "", null);
  if (!response.ok) throw new Failed(response.status, "", "", null);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** @param {string} url @param {RequestInit} options */
async function fetched(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Failed(0, "no_connection", "", null);
  }
}

/** A random UUID; randomUUID exists in secure contexts only, and people self-host over plain HTTP. */
export function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
