// Statistics of two occasions, as workflow_scripts/analyse/intervals/occasions.py computes them; a test compares the two.
import { studentQuantile, studentTail } from "./student.js";

// As in workflow_scripts/analyse/intervals/occasions.py.
export const OCCASIONS_VARY_PCT = 15;
export const CHANGES = "changes";
export const FLAT = "flat";
export const NOT_DECIDED = "not decided";

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
    tested,
    df: parts === 0 ? Infinity : tested ** 2 / parts,
  };
}

// P value of the test whether a ratio is beyond the margin.
function pBeyond({ difference, tested, df }, margin) {
  const beyond = Math.abs(difference) - margin;
  if (tested === 0) return beyond > 0 ? 0 : 1;
  return Math.min(1, 2 * studentTail(beyond / Math.sqrt(tested), df));
}

// P value of the test whether a ratio is within the margin; 1 if the interval exceeds it.
function pWithin({ difference, tested, df }, margin) {
  const within = margin - Math.abs(difference);
  if (Number.isNaN(tested)) return NaN;
  if (halfWidth(tested, df, 0.95) > within) return 1;
  return tested === 0 ? 0 : studentTail(within / Math.sqrt(tested), df);
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
  const flat = holm(all.map((one) => pWithin(one, margin)));
  const known = (value) => (Number.isFinite(value) ? value : null);
  return all.map((one, i) => {
    const half = halfWidth(one.tested, one.df, 0.95);
    return {
      ratio: Math.exp(one.difference),
      low: known(Math.exp(one.difference - half)),
      high: known(Math.exp(one.difference + half)),
      scope: Number.isNaN(one.tested) ? null : "between occasions",
      verdict: flat[i] <= 0.05 ? FLAT : adjusted[i] <= 0.05 ? CHANGES : NOT_DECIDED,
    };
  });
}
