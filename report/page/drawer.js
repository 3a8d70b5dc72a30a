// The drawer: everything about one cell.
import { changeAddress } from "./address.js";
import { blockMap } from "./blocks.js";
import { store, unpack } from "./data.js";
import { choice, definitionList, el, tableOf } from "./dom.js";
import { stripsView } from "./strips.js";
import { chosenNote, ofRepeat, stripsOf, timelineOf } from "./timeline.js";
import { COLUMNS } from "./columns.js";
import { OUTCOMES, heading, number, setting, shown } from "./words.js";

// What a cell's reason is, by its outcome.
const REASONS = { ok: "Starts that failed", missing: "Last line of its log", invalid: "Check that failed", timeout: "Reason" };
const drawer = el("dialog", { class: "drawer", "aria-labelledby": "drawer-title", onclose: () => changeAddress({ cell: null }) });

function settingsTable(cell, data) {
  let effective = {};
  try { effective = Object(JSON.parse(cell.effective ?? "{}")); } catch { /* what cannot be read is not shown */ }
  const knobs = new Map(data.knobs.map(({ name, words }) => [name, words]));
  const asked = [...knobs.keys()].filter((name) => (cell[`knob_${name}`] ?? null) !== null);
  const replaced = (cell.not_as_asked ?? "").split("; ");
  const rows = [...new Set([...asked, ...Object.keys(effective)])].map((name) => {
    const [given, found] = [cell[`knob_${name}`] ?? null, effective[name] ?? null];
    const told = found === null ? "not reported" : setting(typeof given === "boolean" ? Boolean(found) : found);
    const isReplaced = replaced.some((text) => text.startsWith(`${name} `));
    return [knobs.get(name) ?? name.replaceAll("_", " "), given === null ? "left to the engine" : setting(given), isReplaced ? el("strong", {}, `${told} (replaced)`) : told];
  });
  return tableOf("Requested and effective settings", ["Setting", "Requested", "Effective"], rows);
}

function startsOf(repeats) {
  return new Set(repeats.map((repeat) => repeat.start)).size;
}

function repeatsTable(cell) {
  const { repeats } = cell;
  const measures = Object.keys(COLUMNS).filter((name) => repeats.some((repeat) => typeof repeat[name] === "number"));
  const of = (repeat) => `${startsOf(repeats) > 1 ? `start ${repeat.start}, ` : ""}repeat ${repeat.repeat}`;
  const rows = measures.map((name) => {
    const { value, interval } = cell.statistic(name);
    const range = interval ? `${shown(name, interval.low)} to ${shown(name, interval.high)}` : "–";
    return [heading(name), shown(name, value), range, ...repeats.map((repeat) => shown(name, repeat[name]))];
  });
  const headings = ["Measure", "Value", "95 % interval", ...repeats.map(of)];
  return tableOf("Every repeat", headings, rows, headings.map((_, i) => i > 0));
}

function limitsTable(cell) {
  const rates = { datasheet: "data sheet", measured: "measured rates" };
  const rows = cell.limits.map((limit) => [
    rates[limit.rates] ?? limit.rates,
    shown("output_tokens_per_s", limit.output_tokens_per_s_ceiling),
    (limit.bound_by ?? limit.steps_bound_by ?? "–").replaceAll("_", " "),
    shown("ceiling_share", limit.ceiling_share),
    limit.exceeds ? `above the limit: ${limit.ceiling_broken ?? ""}` : "within the limit",
  ]);
  return tableOf("Limits it was checked against", ["Device's rates from", `Ceiling: ${heading("output_tokens_per_s")}`, "Limited by", heading("ceiling_share"), "Check"], rows, [false, true, false, true]);
}

// Without a band there may be a bound from the device's data sheet.
function band(row, of) {
  const [low, high] = [row.low ?? null, row.high ?? null];
  if (low !== null && high !== null) return `${of(low)} to ${of(high)}`;
  return `none${high !== null ? `, at most ${of(high)}` : low !== null ? `, at least ${of(low)}` : ""}`;
}

function predictionsTable(cell) {
  const rows = cell.predictions.filter((row) => row.predicted !== null && row.predicted !== undefined && COLUMNS[row.quantity]).map((row) => {
    const of = (value) => shown(row.quantity, value);
    return [heading(row.quantity), of(row.predicted), band(row, of), of(row.measured), row.error_pct === null || row.error_pct === undefined ? "–" : `${row.error_pct > 0 ? "+" : ""}${number(row.error_pct)} %`, row.why ?? (row.flagged ? "outside its band" : "–")];
  });
  return rows.length ? [el("h3", {}, "Prediction (without measurements of this cell)"), tableOf("Prediction", ["Measure", "Predicted", "Band", "Measured", "Error", "Note"], rows, [false, true, true, true, true])] : [];
}

// The whole log lies in the study's folder, beside the page.
function logLink(cell, data) {
  const place = [data.study.beside, cell.cell_id, cell.log_file].join("/");
  return el("p", {}, el("a", { href: place.split("/").map(encodeURIComponent).join("/") }, "The whole log"), " (only if the page is still in the folder of its study).");
}

function part(title, ...children) {
  return [el("h3", {}, title), ...children];
}

// Timeline and block map, if the page holds the cell's timeline.
async function timelineParts(cell) {
  const held = [...document.querySelectorAll("template.timeline")].find((node) => node.dataset.cell === cell.cell_id);
  if (!held) {
    return cell.repeats.length ? part("Timeline", el("p", { class: "note" }, "The timeline of this cell was left out to keep the page small. Its requests and steps are in the folder parsed of the results.")) : [];
  }
  const timeline = timelineOf(await unpack(held.content.textContent));
  const box = el("div");
  const show = (repeat) => {
    const of = ofRepeat(timeline, repeat);
    const map = blockMap(cell, of);
    box.replaceChildren(
      stripsView(stripsOf(cell, of), of.end, "Requests, scheduler and device over the time of a repeat. Arrow keys move the cursor."),
      ...(map ? part("Block map", map) : []),
    );
  };
  show(timeline.repeats[0]);
  const repeats = choice("Repeat", timeline.repeats.map((repeat) => [String(repeat), `repeat ${repeat}`]), "0", (value) => show(Number(value)));
  const ofStart = startsOf(cell.repeats) > 1 ? " of the first start that gave results" : "";
  return [
    ...part("Timeline", ...(timeline.repeats.length > 1 ? [repeats] : []), el("p", { class: "note" }, `One repeat${ofStart}. ${chosenNote(timeline)}`), box),
  ];
}

async function contentOf(cell, data) {
  const facts = [
    ["Device", `${cell.gpu}${cell.device_name ? ` (${cell.device_name})` : ""}`],
    ["Engine", `${cell.engine}${cell.engine_version ? ` (${cell.engine_version})` : ""}`],
    ["Model", `${cell.model}${cell.dtype ? `, computed in ${cell.dtype}` : ""}${cell.weights ? `, with ${cell.weights} weights` : ""}`],
    ["Workload", cell.workload],
    ["Settings", cell.settings],
    ["Outcome", `${OUTCOMES[cell.outcome] ?? cell.outcome}${cell.comparable === false && cell.outcome !== "missing" ? "; measured with a definition other than the study's, so it is not compared" : ""}`],
  ];
  if (cell.reason) facts.push([REASONS[cell.outcome] ?? "In the engine's words", cell.reason]);
  if (cell.source && cell.source !== "measured") facts.push(["Kind of numbers", cell.source]);
  if (cell.not_as_asked) facts.push(["Replaced by the engine", cell.not_as_asked]);
  if (cell.host) facts.push(["Host", cell.host]);
  if (cell.steady === false) facts.push(cell.repeats.some(({ repeat }) => repeat) ? ["First repeat", "took more than 5 % longer than the mean of the later ones"] : ["Warm-up", "its last two passes differ by more than 5 %"]);
  if (cell.kv_cache_tokens) facts.push(["KV cache", `${setting(cell.num_gpu_blocks)} blocks of ${setting(cell.block_size_effective)} tokens: ${setting(cell.kv_cache_tokens)} tokens`]);
  return [
    definitionList(facts),
    ...part("Measure again", el("pre", { tabindex: "0" }, el("code", {}, `${data.study.measure}/${cell.cell_id}/outcome.json`))),
    ...(cell.repeats.length ? part("Repeats", repeatsTable(cell)) : []),
    ...(cell.limits.length ? part("Limits", limitsTable(cell)) : []),
    ...predictionsTable(cell),
    ...(await timelineParts(cell)),
    ...part("Settings", settingsTable(cell, data)),
    ...(cell.log ? part("Last lines of its log", el("pre", { tabindex: "0" }, cell.log), logLink(cell, data)) : []),
  ];
}

export async function openCell(id) {
  const data = await store();
  const cell = data.byId.get(id);
  if (!cell) return;
  changeAddress({ cell: id });
  const content = await contentOf(cell, data);
  drawer.replaceChildren(
    el("header", {}, el("h2", { id: "drawer-title" }, `${cell.gpu}, ${cell.engine}, ${cell.model}, ${cell.workload}: ${cell.settings}`), el("button", { type: "button", class: "plain", onclick: () => drawer.close() }, "Close")),
    ...content,
  );
  if (!drawer.isConnected) document.body.append(drawer);
  if (!drawer.open) drawer.showModal();
  drawer.scrollTop = 0;
}
