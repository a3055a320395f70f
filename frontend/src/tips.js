/** What stands behind the info button of an answer: CSS shows it while the button is pointed at or focused. */

/** Above its button, or below where the page leaves no room. @param {Event} event  pointerover or focusin */
export function placeTip(event) {
  const info = /** @type {Element} */ (event.target).closest?.(".info");
  const tip = info?.querySelector(".tip");
  const room = info?.closest("[data-scroll]");
  if (!info || !tip || !room) return;
  const above = info.getBoundingClientRect().top - room.getBoundingClientRect().top;
  info.toggleAttribute("data-below", above < tip.clientHeight);
}

/** Escape: it stays away until it is pointed at, or focused, anew. */
export function closeTip() {
  const info = document.querySelector(".info:not([data-off]):is(:hover, :focus-within)");
  info?.setAttribute("data-off", "");
  for (const left of ["pointerleave", "focusout"]) info?.addEventListener(left, () => info.removeAttribute("data-off"), { once: true });
  return Boolean(info);
}
