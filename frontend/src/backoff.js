/** PURE: how long to wait before the next try. */

export const FIRST_MS = 400;
export const LONGEST_MS = 15_000;

/**
 * Milliseconds before try number `attempt` (from 0), doubled each time; half of it is random, so that the readers of
 * a restarted server do not come back at once.
 * @param {number} attempt
 * @param {number} random  from 0 to 1
 */
export function delay(attempt, random) {
  const whole = Math.min(LONGEST_MS, FIRST_MS * 2 ** attempt);
  return whole / 2 + (whole / 2) * random;
}
