/** What is typed and not sent, kept in this browser for its person, a chat each. */

const PREFIX = "draft:";

export class Drafts {
  /** @param {Storage} storage @param {string} user */
  constructor(storage, user) {
    this.storage = storage;
    this.user = user;
    this.forgetOthers();
  }

  /** @param {string} chat  its id, or "" for a new one */
  key(chat) {
    return `${PREFIX}${this.user}:${chat || "new"}`;
  }

  /** @param {string} chat */
  read(chat) {
    return this.storage.getItem(this.key(chat)) ?? "";
  }

  /** @param {string} chat @param {string} text */
  write(chat, text) {
    try {
      if (text) this.storage.setItem(this.key(chat), text);
      else this.storage.removeItem(this.key(chat));
    } catch {
      // The storage is full or forbidden: a draft is a convenience.
    }
  }

  /** Another person's drafts do not stay on a shared machine. */
  forgetOthers() {
    for (const key of Object.keys(this.storage)) {
      if (key.startsWith(PREFIX) && !key.startsWith(`${PREFIX}${this.user}:`)) this.storage.removeItem(key);
    }
  }
}
