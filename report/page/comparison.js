// Compare two studies by their digests, as workflow_scripts/analyse/compare/comparison.py does; a test compares the two.
import { differences, keysOf, own, valueText, whyNot } from "./comparability.js";
import { median } from "./data.js";
import { CHANGES, FLAT, compareOccasions } from "./occasions.js";

const MISSING = "missing";
const DECIDED = [CHANGES, "faster", "slower"];

function ratios(compared, marginPct, varyPct) {
  const rows = compared.flatMap(([x, y]) =>
    x.means.flatMap((mean) => y.means.filter((other) => other.measure === mean.measure).map((other) => ({ x, y, mean, other }))),
  );
  const found = compareOccasions(rows.map(({ mean, other }) => [mean, other]), marginPct, varyPct);
  const exceeds = (ratio) => Math.abs(Math.log(ratio)) > Math.log1p(marginPct / 100);
  return rows.map(({ x, y, mean, other }, i) => {
    const [one, two] = [x, y].map((cell) => (mean.measure === "output_tokens_per_s" ? own(cell, "device_rate") : null));
    const deviceRatio = one && two ? two / one : null;
    return {
      cell: x.id, measure: mean.measure, a: Math.exp(mean.log_mean), b: Math.exp(other.log_mean), ...found[i],
      device_ratio: deviceRatio, only_waiting: deviceRatio !== null && exceeds(found[i].ratio) && !exceeds(deviceRatio),
    };
  });
}

function turned({ ratio, low, high, scope, verdict }) {
  return { ratio: 1 / ratio, low: high ? 1 / high : null, high: low ? 1 / low : null, scope, verdict };
}

// The result of a comparison: 1 for higher, -1 for lower, 0 for flat; null if it is not decided.
function stated({ ratio, low, high, verdict }) {
  if (verdict === FLAT) return 0;
  const decided = verdict === null ? low !== null && high !== null && !(low <= 1 && 1 <= high) : DECIDED.includes(verdict);
  if (!decided) return null;
  return ratio > 1 ? 1 : -1;
}

export function contradiction(a, b) {
  const [one, other] = [stated(a), stated(b)];
  if (one !== null && other !== null && one !== other) return one === 0 || other === 0 ? "flat against changes" : "opposite directions";
  if ((one === null && other === null) || [a.low, b.low, a.high, b.high].includes(null)) return null;
  return a.high < b.low || b.high < a.low ? "intervals share no value" : null;
}

function agreements(a, b, compared) {
  const keyOf = (kind, cell, baseline) => JSON.stringify([kind, cell, baseline]);
  // Which of two devices comes first depends on their speed, so another run may name them in the other order.
  const inB = new Map([
    ...b.pairs.map(({ kind, cell, baseline, found }) => [keyOf(kind, baseline, cell), turned(found)]),
    ...b.pairs.map(({ kind, cell, baseline, found }) => [keyOf(kind, cell, baseline), found]),
  ]);
  return a.pairs.flatMap(({ kind, name, cell, baseline, found }) => {
    const other = inB.get(keyOf(kind, cell, baseline));
    if (!other || !compared.has(cell) || !compared.has(baseline)) return [];
    return [{
      kind, name, cell, baseline, a: found, b: other,
      inside: found.low === null || found.high === null ? null : found.low <= other.ratio && other.ratio <= found.high,
      contradiction: contradiction(found, other),
    }];
  });
}

function ofCell(x, y) {
  const found = [];
  for (const name of keysOf(x.environment, y.environment)) {
    const [one, other] = [x, y].map(({ environment }) => (own(environment, name) ?? []).join(", ") || null);
    if (one !== other) found.push([name, one, other]);
  }
  for (const rates of keysOf(x.ceilings).filter((name) => Object.hasOwn(y.ceilings, name))) {
    const [one, other] = [x.ceilings[rates], y.ceilings[rates]];
    if (one !== other) found.push([`limit: output tokens/s by ${rates} rates`, one, other]);
  }
  return found;
}

// What differs in any cell, given by its name and both values for each cell.
function counted(found) {
  const values = new Map();
  for (const [what, ...pair] of found) values.set(what, [...(values.get(what) ?? []), pair]);
  return [...values].map(([what, pairs]) => ({
    what, a: pairs[0][0], b: pairs[0][1], cells: pairs.length,
    others: new Set(pairs.map((pair) => JSON.stringify(pair.map(valueText)))).size - 1,
  }));
}

function bySetting([x, y]) {
  return differences(x.effective, y.effective).filter(({ a, b }) => a !== null && b !== null).map(({ path, a, b }) => [path, a, b]);
}

function different(a, b, ended) {
  const ofStudy = differences(a.settings, b.settings).map(({ path, a: one, b: other }) => ({ what: `study: ${path}`, a: one, b: other, cells: 0, others: 0 }));
  return [...ofStudy, ...counted(ended.flatMap(([x, y]) => ofCell(x, y)))];
}

// Compare study B with study A, by digests as checkDigest accepts them.
export function comparison(a, b, varyPct) {
  const [ofA, ofB] = [a, b].map(({ cells }) => new Map(cells.map((cell) => [cell.id, cell])));
  const common = [...ofA.values()].filter(({ id }) => ofB.has(id)).map((cell) => [cell, ofB.get(cell.id)]);
  const ended = common.filter(([x, y]) => x.outcome !== MISSING && y.outcome !== MISSING);
  const ok = ended.filter(([x, y]) => x.outcome === "ok" && y.outcome === "ok").map(([x, y]) => [x, y, whyNot(x, y)]);
  const compared = ok.filter(([, , why]) => !why.length);
  const otherwise = ended.filter(([x, y]) => x.outcome !== y.outcome).map(([x, y]) => [x, y, whyNot(x, y)]);
  const starts = ok.map(([x, y]) => [own(x, "start_s"), own(y, "start_s")]).filter(([one, other]) => one && other);
  const margin = own(a.settings, "equivalence_margin_pct");
  const marginPct = typeof margin === "number" ? margin : 2;
  return {
    study_a: a.study,
    study_b: b.study,
    margin_pct: marginPct,
    occasions_vary_pct: varyPct,
    cells: ratios(compared, marginPct, varyPct),
    refused: [...ok, ...otherwise].filter(([, , why]) => why.length).map(([x, , why]) => ({ cell: x.id, why })),
    outcomes: otherwise
      .filter(([, , why]) => !why.length)
      .map(([x, y]) => ({ cell: x.id, a: x.outcome, b: y.outcome, reason: y.reason || x.reason })),
    only_a: [...ofA.keys()].filter((id) => !ofB.has(id)),
    only_b: [...ofB.keys()].filter((id) => !ofA.has(id)),
    pairs: agreements(a, b, new Set(compared.map(([x]) => x.id))),
    by_itself: counted(ended.flatMap(bySetting)),
    start_s_a: starts.length ? median(starts.map(([one]) => one)) : null,
    start_s_b: starts.length ? median(starts.map(([, other]) => other)) : null,
    differences: different(a, b, ended),
  };
}
