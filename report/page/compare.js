// The view Compare: another report is dropped or chosen, and its study is compared with the one of this page.
import { comparison } from "./comparison.js";
import { said } from "./comparability.js";
import { median } from "./data.js";
import { digestOf, ownDigest } from "./digest.js";
import { el, tableOf } from "./dom.js";
import { openCell } from "./drawer.js";
import { CHANGES, FLAT, NOT_DECIDED, OCCASIONS_VARY_PCT } from "./occasions.js";
import { cellWords } from "./explore.js";
import { numberInput } from "./inputs.js";
import { number, plural } from "./words.js";

const ROWS_AT_ONCE = 50;
const TONES = { [CHANGES]: "bad", [FLAT]: "good" };
// The file that is compared, and whether this page is A, what was measured before.
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

function verdictOf(verdict) {
  return verdict === null ? "" : el("span", { class: `verdict ${TONES[verdict] ?? ""}` }, verdict);
}

// What the comparison shows, in sentences.
export function sentencesOf(found) {
  const count = (verdict) => found.cells.filter((cell) => cell.verdict === verdict).length;
  const known = found.pairs.filter(({ inside }) => inside !== null);
  const contradictions = found.pairs.filter((pair) => pair.contradiction !== null).length;
  const cells = new Set(found.cells.map(({ cell }) => cell)).size;
  return [
    `${plural(found.cells.length, "measure")} of ${plural(cells, "cell")} compared: ${count(CHANGES)} changed, ${count(FLAT)} flat within ${number(found.margin_pct)} %, ${count(NOT_DECIDED)} not decided.`,
    ...(found.refused.length ? [`${plural(found.refused.length, "cell")} must not be compared; the reasons are below.`] : []),
    ...(found.outcomes.length ? [`${plural(found.outcomes.length, "cell")} ended otherwise.`] : []),
    ...(found.only_a.length || found.only_b.length ? [`Only in A: ${plural(found.only_a.length, "cell")}; only in B: ${found.only_b.length}.`] : []),
    ...(found.pairs.length
      ? [`Both studies compared the same ${plural(found.pairs.length, "pair")} of their own cells: of ${known.filter(({ inside }) => inside).length} of ${known.length} the ratio in B is inside the interval of A, and ${contradictions ? `${contradictions} contradict` : "none contradicts"} the other study.`]
      : []),
  ];
}

// A table that shows more rows when asked.
function longTable(caption, headings, rows, numeric = []) {
  if (!rows.length) return [];
  const box = el("div");
  let count = ROWS_AT_ONCE;
  const draw = () => {
    const more = el("button", { type: "button", class: "plain", onclick: () => { count += ROWS_AT_ONCE; draw(); } }, `Show ${ROWS_AT_ONCE} more`);
    box.replaceChildren(
      tableOf(caption, headings, rows.slice(0, count).map((row) => row()), numeric),
      ...(rows.length > count ? [el("p", { class: "note" }, `${count} of ${rows.length.toLocaleString("en")} rows are shown. `, more)] : []),
    );
  };
  draw();
  return [el("h3", {}, caption), box];
}

function places(cells) {
  const groups = new Map();
  for (const { cell, measure, ratio } of cells) {
    const key = JSON.stringify([...cell.split("/").slice(0, 2), measure]);
    groups.set(key, [...(groups.get(key) ?? []), ratio]);
  }
  return [...groups].map(([key, all]) => () => {
    const [gpu, engine, measure] = JSON.parse(key);
    return [`${gpu}, ${engine}`, measure, String(all.length), number(median(all)), `${number(Math.min(...all))} to ${number(Math.max(...all))}`];
  });
}

function tables(found, store) {
  const name = (id) => {
    const cell = store.byId.get(id);
    return cell ? el("button", { type: "button", class: "link", onclick: () => openCell(id) }, cellWords(cell)) : id;
  };
  const bySize = [...found.cells].sort((a, b) => (b.verdict === CHANGES) - (a.verdict === CHANGES) || Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
  const byAgreement = [...found.pairs].sort((a, b) => (a.contradiction === null) - (b.contradiction === null) || (a.inside !== false) - (b.inside !== false));
  const agreement = ({ contradiction, inside }) => contradiction ?? (inside === null ? "A has no interval" : inside ? "inside A's interval" : "outside A's interval");
  return [
    ...longTable("By device and engine", ["Device and engine", "Measure", "Cells", "Median B/A", "Range"], places(found.cells), [false, false, true, true, true]),
    ...longTable(
      "Cells, the largest change first",
      ["Cell", "Measure", "A", "B", "B/A (95 % interval)", "Interval covers", "Verdict"],
      bySize.map((cell) => () => [name(cell.cell), cell.measure, number(cell.a), number(cell.b), ratioWords(cell), cell.scope, verdictOf(cell.verdict)]),
      [false, false, true, true, true],
    ),
    ...longTable("Ended otherwise", ["Cell", "A", "B", "Reason"], found.outcomes.map(({ cell, a, b, reason }) => () => [name(cell), a, b, reason ?? ""])),
    ...longTable("Not compared", ["Cell", "Why"], found.refused.map(({ cell, why }) => () => [name(cell), why.join("; ")])),
    ...longTable(
      "What both say of their own cells, contradictions first",
      ["Cell", "Over", "A (95 % interval)", "Verdict", "B (95 % interval)", "Verdict", "Agreement"],
      byAgreement.map((pair) => () => [name(pair.cell), name(pair.baseline), ratioWords(pair.a), verdictOf(pair.a.verdict), ratioWords(pair.b), verdictOf(pair.b.verdict), agreement(pair)]),
    ),
    ...longTable(
      "What differs between A and B",
      ["What", "A", "B", "Cells"],
      found.differences.map(({ what, a, b, cells, others }) => () => [what, said(a), `${said(b)}${others ? `, and ${plural(others, "other pair")}` : ""}`, cells ? String(cells) : ""]),
      [false, false, false, true],
    ),
    ...longTable("Only in A", ["Cell"], found.only_a.map((id) => () => [name(id)])),
    ...longTable("Only in B", ["Cell"], found.only_b.map((id) => () => [name(id)])),
  ];
}

export function showCompare(panel, store) {
  const out = el("div");
  const status = el("div", { role: "status" });
  const update = async () => {
    if (!chosen.file) {
      status.replaceChildren(el("p", { class: "absent" }, "No other report has been chosen yet."));
      out.replaceChildren();
      return;
    }
    try {
      const vary = occasions.value();
      if (vary === null) throw new Error("What occasions vary needs a number from 0 to 99.");
      const [here, other] = await Promise.all([ownDigest(), chosen.file.text().then(digestOf)]);
      const [a, b] = chosen.thisIsFirst ? [here, other] : [other, here];
      const words = (digest) => `${digest.study} (${digest === here ? "this report" : chosen.file.name})`;
      const found = comparison(a, b, vary);
      status.replaceChildren(el("p", {}, `A: ${words(a)}. B: ${words(b)}. Ratios are of B over A.`), el("ul", {}, sentencesOf(found).map((sentence) => el("li", {}, sentence))));
      out.replaceChildren(...tables(found, store));
    } catch (error) {
      status.replaceChildren(el("p", { class: "absent" }, error.message));
      out.replaceChildren();
    }
  };
  const occasions = numberInput("What occasions vary (standard deviation, %)", "vary", OCCASIONS_VARY_PCT, { min: 0, max: 99, changed: () => update() });
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
    el("p", { class: "lead" }, "Drop the report of another run onto this page, or choose it: another day, another host, another version of an engine. It is read here and goes nowhere."),
    el("div", { class: "controls" }, el("label", { class: "choice" }, el("span", {}, "Another report (HTML)"), file), occasions.node, el("label", { class: "choice" }, el("span", {}, "This report was first"), el("span", { class: "boxes" }, first))),
    status,
    el("p", { class: "note" }, "A rate that was measured on one occasion promises nothing beyond it. The intervals cover what varied within each of the two occasions. A cell counts as changed only if that is more than occasions vary; without knowing better, 15 %, the most that was seen of a shared machine."),
    out,
  );
  return update();
}
