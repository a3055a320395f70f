// The page "right now" in the admin: its figures are fetched anew every 2 seconds while somebody looks at it.
"use strict";

const PERIOD_MS = 2000;
const now = document.getElementById("now");
const live = /** @type {HTMLInputElement} */ (document.getElementById("live"));
const stale = document.getElementById("stale");

async function refresh() {
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(5 * PERIOD_MS) });
    const page = answer.ok && !answer.redirected && new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = page && page.getElementById("now");
    stale.hidden = Boolean(next);
    if (next) replace(next);
  } catch {
    stale.hidden = false;
  }
}

/** What has the focus keeps it, and what was scrolled sideways stays where it is. */
function replace(next) {
  const places = () => [...now.querySelectorAll("a, .wide")];
  const focused = places().indexOf(document.activeElement);
  const scrolled = places().map((place) => place.scrollLeft);
  now.replaceChildren(...next.childNodes);
  places().forEach((place, index) => {
    place.scrollLeft = scrolled[index] ?? 0;
    if (index === focused) place.focus({ preventScroll: true });
  });
}

async function run() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    if (live.checked && document.visibilityState === "visible") await refresh();
  }
}

void run();
