// The view Compare: another report is dropped or chosen, and its study is compared with the one of this page.
import { comparison } from "./comparison.js";
import { valueText } from "./comparability.js";
import { median } from "./data.js";
import { digestOf, ownDigest } from "./digest.js";
import { el, longTable } from "./dom.js";
import { openCell } from "./drawer.js";
import { CHANGES, FLAT, NOT_DECIDED, OCCASIONS_VARY_PCT } from "./occasions.js";
import { numberInput } from "./inputs.js";
import { METRICS } from "./metrics.js";
import { UNKNOWN, number, plural, withUnit } from "./words.js";

const TONES = { [CHANGES]: "bad", [FLAT]: "good" };
// The chosen file, and whether this page is A, the study that was measured first.
const chosen = { file: null, thisIsFirst: false };

// Open the view when a file is dropped anywhere on the page.
export function acceptDrops(open) {
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (holdsFiles(event)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    chosen.file = event.dataTransfer.files[0] ?? null;
    open();
  });
}

function ratioWords({ ratio, low, high }) {
  return low === null || high === null ? `${number(ratio)} (no interval)` : `${number(ratio)} (${number(low)} to ${number(high)})`;
}

function verdictOf({ verdict, only_waiting: onlyWaiting, device_ratio: deviceRatio }) {
  const why = onlyWaiting ? ` only waiting for the host (${number(deviceRatio)} without)` : "";
  return el("span", {}, el("span", { class: `verdict ${TONES[verdict] ?? ""}` }, verdict), why);
}

// The results of the comparison, in sentences.
function sentencesOf(found) {
  const count = (verdict) => found.cells.filter((cell) => cell.verdict === verdict).length;
  const known = found.pairs.filter(({ inside }) => inside !== null);
  const contradictions = found.pairs.filter((pair) => pair.contradiction !== null).length;
  const cells = new Set(found.cells.map(({ cell }) => cell)).size;
  return [
    `${plural(found.cells.length, "measure")} of ${plural(cells, "cell")} compared: ${count(CHANGES)} changed, ${count(FLAT)} flat within ${number(found.margin_pct)} %, ${count(NOT_DECIDED)} not decided.`,
    ...(found.refused.length ? [`${plural(found.refused.length, "cell")} cannot be compared; the reasons are below.`] : []),
    ...(found.outcomes.length ? [`${plural(found.outcomes.length, "cell")} ended with another outcome.`] : []),
    ...(found.only_a.length || found.only_b.length ? [`Only in A: ${plural(found.only_a.length, "cell")}; only in B: ${found.only_b.length}.`] : []),
    ...(found.start_s_a && found.start_s_b ? [`A start took ${number(found.start_s_a)} s in A and ${number(found.start_s_b)} s in B (medians).`] : []),
    ...(found.pairs.length
      ? [`Both studies made ${plural(found.pairs.length, "comparison")} of the same two cells. In ${known.filter(({ inside }) => inside).length} of the ${known.length} that have an interval in A, the ratio in B is inside it. In ${contradictions || "none"}, A and B contradict each other.`]
      : []),
  ];
}

function titled(caption, headings, rows, numeric = []) {
  return rows.length ? [el("h3", {}, caption), longTable(caption, headings, rows, numeric)] : [];
}

function places(cells) {
  const groups = new Map();
  for (const { cell, measure, ratio } of cells) {
    const key = JSON.stringify([...cell.split("/").slice(0, 2), measure]);
    groups.set(key, [...(groups.get(key) ?? []), ratio]);
  }
  return [...groups].map(([key, all]) => () => {
    const [gpu, engine, measure] = JSON.parse(key);
    return [`${gpu}, ${engine}`, METRICS[measure]?.name ?? measure, String(all.length), number(median(all)), `${number(Math.min(...all))} to ${number(Math.max(...all))}`];
  });
}

// A cell in words, without what all cells of the page have in common; null if the page does not have the cell.
function partsOf(store) {
  return (id) => {
    const cell = store.byId.get(id);
    return cell ? [...store.differing.map((name) => cell[name]), ...cell.label.split(", ")] : null;
  };
}

function measured(value, measure) {
  const { unit, factor } = METRICS[measure] ?? { unit: "", factor: 1 };
  return withUnit(value * factor, unit);
}

function tables(found, store) {
  const parts = partsOf(store);
  const name = (id) => (parts(id) ? el("button", { type: "button", class: "link", onclick: () => openCell(id) }, parts(id).join(", ")) : id);
  const words = (measure) => METRICS[measure]?.name ?? measure;
  // The other cell of a pair, by what differs only.
  const over = (id, other) => {
    const shared = new Set(parts(other) ?? []);
    return parts(id)?.filter((part) => !shared.has(part)).join(", ") || id;
  };
  const stated = (of) => `${ratioWords(of)}${of.verdict === null ? "" : `: ${of.verdict}`}`;
  const bySize = [...found.cells].sort((a, b) => (b.verdict === CHANGES) - (a.verdict === CHANGES) || Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
  const byAgreement = [...found.pairs].sort((a, b) => (a.contradiction === null) - (b.contradiction === null) || (a.inside !== false) - (b.inside !== false));
  const agreement = ({ contradiction, inside }) => contradiction ?? (inside === null ? "A has no interval" : inside ? "inside A's interval" : "outside A's interval");
  const pair = ({ what, a, b, cells, others }) => () => [what, valueText(a), `${valueText(b)}${others ? `, and ${plural(others, "other pair")}` : ""}`, cells ? String(cells) : ""];
  const differing = (caption, what, of) => titled(caption, [what, "A", "B", "Cells"], of.map(pair), [false, false, false, true]);
  return [
    ...differing("What changed by itself", "Setting that took effect", found.by_itself),
    ...titled("By device and engine", ["Device and engine", "Measure", "Cells", "Median B/A", "Range"], places(found.cells), [false, false, true, true, true]),
    ...titled(
      "Cells, the largest change first",
      ["Cell", "B/A (95 % interval)", "Verdict", "A", "B", "Measure", "Interval covers"],
      bySize.map((cell) => () => [name(cell.cell), ratioWords(cell), verdictOf(cell), measured(cell.a, cell.measure), measured(cell.b, cell.measure), words(cell.measure), cell.scope ?? UNKNOWN]),
    ),
    ...titled("Other outcomes", ["Cell", "A", "B", "Reason"], found.outcomes.map(({ cell, a, b, reason }) => () => [name(cell), a, b, reason ?? ""])),
    ...titled("Not compared", ["Cell", "Why"], found.refused.map(({ cell, why }) => () => [name(cell), why.join("; ")])),
    ...titled(
      "Comparisons that both studies made, contradictions first",
      ["Cell", "Over", "Agreement", "Ratio in A (95 % interval)", "Ratio in B (95 % interval)"],
      byAgreement.map((pair) => () => [name(pair.cell), over(pair.baseline, pair.cell), agreement(pair), stated(pair.a), stated(pair.b)]),
    ),
    ...differing("What else differs between A and B", "What", found.differences),
    ...titled("Only in A", ["Cell"], found.only_a.map((id) => () => [name(id)])),
    ...titled("Only in B", ["Cell"], found.only_b.map((id) => () => [name(id)])),
  ];
}

export function showCompare(panel, store) {
  const out = el("div");
  const status = el("div", { role: "status" });
  let turn = 0;
  const update = async () => {
    turn += 1;
    const mine = turn;
    if (!chosen.file) {
      status.replaceChildren(el("p", { class: "absent" }, "No other report has been chosen yet."));
      out.replaceChildren();
      return;
    }
    try {
      const vary = occasions.value();
      if (vary === null) throw new Error("Variation between occasions must be a number from 0 to 99.");
      const [here, other] = await Promise.all([ownDigest(), chosen.file.text().then(digestOf)]);
      const [a, b] = chosen.thisIsFirst ? [here, other] : [other, here];
      const words = (digest) => `${digest.study} (${digest === here ? "this report" : chosen.file.name})`;
      if (mine !== turn) return;
      const found = comparison(a, b, vary);
      status.replaceChildren(el("p", {}, `A: ${words(a)}. B: ${words(b)}. Ratios are of B over A.`), el("ul", {}, sentencesOf(found).map((sentence) => el("li", {}, sentence))));
      out.replaceChildren(...tables(found, store));
    } catch (error) {
      if (mine !== turn) return;
      status.replaceChildren(el("p", { class: "absent" }, error.message));
      out.replaceChildren();
    }
  };
  const occasions = numberInput("Variation between occasions (standard deviation, %)", "vary", OCCASIONS_VARY_PCT, { min: 0, max: 99, changed: () => update() });
  const file = el("input", { type: "file", accept: ".html,text/html", onchange: () => {
    chosen.file = file.files[0] ?? null;
    update();
  } });
  const first = el("input", { type: "checkbox", checked: chosen.thisIsFirst, onchange: () => {
    chosen.thisIsFirst = first.checked;
    update();
  } });
  panel.replaceChildren(
    el("h2", {}, "Compare with another report"),
    el("p", { class: "lead" }, "Drop the report of another run onto this page, or choose it: of another day, another host or another version of an engine. It is read in this page and sent nowhere."),
    el("div", { class: "controls" }, el("label", { class: "choice" }, el("span", {}, "Another report (HTML)"), file), occasions.node, el("label", { class: "choice" }, el("span", {}, "This report was measured first"), el("span", { class: "boxes" }, first))),
    status,
    el("p", { class: "note" }, "The same cell may be faster or slower on another occasion although nothing was changed. So the intervals, and what counts as changed, allow for the variation between occasions. The default for this, 15 %, is the maximum seen on a shared machine."),
    out,
  );
  return update();
}
