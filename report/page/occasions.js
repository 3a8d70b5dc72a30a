// Statistics of two occasions, as workflow_scripts/analyse/occasions.py computes them; a test compares the two.
import { studentQuantile, studentTail } from "./student.js";

// As in workflow_scripts/analyse/statistics.py.
const ASSUMED_SD = 0.15;
export const OCCASIONS_VARY_PCT = 100 * ASSUMED_SD;
export const CHANGES = "changes";
export const FLAT = "flat";
export const NOT_DECIDED = "not decided";
export const WITHIN_START = "within one start";

function halfWidth(squaredError, df, confidence) {
  if (squaredError === 0) return 0;
  return studentQuantile((1 + confidence) / 2, df) * Math.sqrt(squaredError);
}

// Two means of logarithms {log_mean, squared_error, df, starts} of a cell.
function compared(a, b, varyPct) {
  const [one, other] = [a, b].map(({ squared_error: squared }) => squared ?? NaN);
  const error = one + other;
  const parts = one ** 2 / (a.df ?? NaN) + other ** 2 / (b.df ?? NaN);
  const tested = error + 2 * (varyPct / 100) ** 2;
  return {
    difference: b.log_mean - a.log_mean,
    error,
    welch: error ** 2 / parts,
    tested,
    df: parts === 0 ? Infinity : tested ** 2 / parts,
    starts: Math.min(a.starts, b.starts),
  };
}

// P value of the test whether a ratio is beyond the margin; 1 if the interval contains 1.
function pBeyond({ difference, tested, df, error, welch }, margin) {
  if (Math.abs(difference) <= halfWidth(error, welch, 0.95)) return 1;
  const beyond = Math.abs(difference) - margin;
  if (tested === 0) return beyond > 0 ? 0 : 1;
  return Math.min(1, 2 * studentTail(beyond / Math.sqrt(tested), df));
}

// P values adjusted for all comparisons by Holm's method; an unknown one counts as one of them.
export function holm(p) {
  const order = p.map((_, i) => i).sort((i, j) => (Number.isNaN(p[i]) ? Number.isNaN(p[j]) ? 0 : 1 : Number.isNaN(p[j]) ? -1 : p[i] - p[j]));
  const adjusted = Array(p.length);
  let highest = 0;
  order.forEach((i, place) => {
    highest = Number.isNaN(p[i]) ? NaN : Math.max(highest, p[i] * (p.length - place));
    adjusted[i] = Math.min(highest, 1);
  });
  return adjusted;
}

// For each pair of means: ratio of the second over the first with interval, scope and verdict.
export function compareOccasions(pairs, marginPct, varyPct) {
  const margin = Math.log1p(marginPct / 100);
  const all = pairs.map(([a, b]) => compared(a, b, varyPct));
  const adjusted = holm(all.map((one) => pBeyond(one, margin)));
  const known = (value) => (Number.isFinite(value) ? value : null);
  return all.map((one, i) => {
    const half = halfWidth(one.error, one.welch, 0.95);
    const isFlat = Math.abs(one.difference) + halfWidth(one.tested, one.df, 0.9) <= margin;
    return {
      ratio: Math.exp(one.difference),
      low: known(Math.exp(one.difference - half)),
      high: known(Math.exp(one.difference + half)),
      scope: Number.isNaN(one.error) ? null : one.starts > 1 ? "between starts of these two occasions" : WITHIN_START,
      verdict: isFlat ? FLAT : adjusted[i] <= 0.05 ? CHANGES : NOT_DECIDED,
    };
  });
}
