/** What a screen reader hears: whole blocks and endings, not each token. */

const KEPT = 20; // paragraphs of the region; what was said can go

/** @param {string} text */
export function announce(text) {
  const region = document.getElementById("live");
  if (!region || !text.trim()) return;
  const line = document.createElement("p");
  line.textContent = text;
  region.append(line);
  while (region.childElementCount > KEPT) region.firstElementChild?.remove();
}

/** A message about something that happened elsewhere. @param {string} text */
export function toast(text) {
  const box = document.createElement("p");
  box.className = "toast";
  box.textContent = text;
  document.getElementById("toasts")?.append(box);
  setTimeout(() => box.remove(), 6000);
}
