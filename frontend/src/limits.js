/** PURE: a limit that refuses a message: what is used up, when there is more, what the next plan gives. */

/**
 * @typedef {object} Facts  of the refusal's body (billing/limits.py)
 * @property {"user" | "api_key" | "organization"} limit_of
 * @property {"requests" | "tokens"} limit_kind
 * @property {number} amount
 * @property {number} used
 * @property {number} window_seconds
 * @property {string} [renews_at]  ISO 8601; none: it never lets so much through
 * @property {{name: string, amount: number | null}} [next_plan]
 */
/** @typedef {{say: (key: string, values?: Record<string, string | number>) => string, locale: string, zone: string, now: Date}} Reader */

/**
 * @param {Facts} facts
 * @param {Reader} reader
 */
export function limitWords(facts, reader) {
  const { say, locale } = reader;
  const number = new Intl.NumberFormat(locale);
  const left = Math.max(0, facts.amount - facts.used);
  const end = !facts.renews_at ? "small" : facts.limit_kind === "requests" ? "requests" : left ? "few" : "tokens";
  const whose = facts.limit_of === "organization" ? "together" : "limit";
  const sentences = [
    say(`${whose}_${end}`, {
      amount: number.format(facts.amount),
      left: number.format(left),
      span: span(facts.window_seconds, locale),
    }),
  ];
  if (facts.renews_at) sentences.push(say("renews_at", { time: clock(new Date(facts.renews_at), reader) }));
  const next = facts.next_plan;
  if (next?.amount === null) sentences.push(say("next_plan_any", { plan: next.name }));
  else if (next) sentences.push(say("next_plan", { plan: next.name, amount: number.format(next.amount) }));
  return sentences.join(" ");
}

/** 3 hours, 1 day, in the largest unit that fits. @param {number} seconds @param {string} locale */
export function span(seconds, locale) {
  const units = { week: 604_800, day: 86_400, hour: 3600, minute: 60, second: 1 };
  const [unit, length] = Object.entries(units).find(([, each]) => seconds % each === 0) ?? ["second", 1];
  return new Intl.NumberFormat(locale, { style: "unit", unit, unitDisplay: "long" }).format(seconds / length);
}

/** 14:20 today, the day beside it on others; up to the next minute, for there is more from then on. @param {Date} moment @param {Reader} reader */
export function clock(moment, { say, locale, zone: timeZone, now }) {
  const whole = new Date(Math.ceil(moment.getTime() / 60_000) * 60_000);
  const time = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone }).format(whole);
  const day = new Intl.DateTimeFormat(locale, { dateStyle: "short", timeZone });
  if (day.format(whole) === day.format(now)) return time;
  return say("date_time", { date: new Intl.DateTimeFormat(locale, { month: "long", day: "numeric", timeZone }).format(whole), time });
}
