// The view Explore: one filter drives a chart and a table of cells.
import { changeAddress, current } from "./address.js";
import { deviceColour } from "./canvas.js";
import { Chart, keysOf } from "./chart.js";
import { choice, el, longTable } from "./dom.js";
import { openCell } from "./drawer.js";
import { facetsOf, filterForm, filtered } from "./filter.js";
import { RATE, STEADY, fairRate, several, unlike } from "./fair.js";
import { isWide } from "./scale.js";
import { COLUMNS } from "./columns.js";
import { OUTCOMES, PLACES, heading, plural, setting, shown } from "./words.js";

// What sets the number of sequences allowed at once.
const AXIS = new Set(["set.max_num_seqs", "set.batch_size"]);
const MOST_SERIES = 24;
// A measure over a wider range than this has a logarithmic axis.
export const MANY_TIMES = 20;
// The quantities that most readers look for; so many of those that are known are offered first.
const MOST_MAIN = 12;
const MAIN = [RATE, STEADY, "total_tokens_per_s", "requests_per_s", "ttft_s_p50", "ttft_s_p99", "tpot_s_p50", "e2e_s_p50", "energy_j_per_output_token", "kv_bytes_used_mean", "mbu", "ceiling_share", "power_w_mean", "running_peak", "kv_cache_usage_peak", "mfu"];
const DRAWN = new Set(["ok", "invalid"]);

function metricsWithValues(store) {
  const known = Object.keys(COLUMNS).filter((name) => store.repeats[name] !== undefined);
  return [...MAIN.filter((name) => known.includes(name)), ...known.filter((name) => !MAIN.includes(name))];
}

// What the x axis may be: the number of sequences, settings that are numbers, or another measure.
function axesOf(store, facets) {
  const knobs = facets.filter((facet) => facet.isKnob && facet.values.some((value) => typeof value === "number"));
  return [
    { id: "sequences", label: "Sequences allowed at once", of: (cell) => cell.max_concurrency_allowed, isSetting: true },
    ...knobs.map((facet) => ({ id: facet.id, label: facet.words, of: facet.of, isSetting: true })),
    ...metricsWithValues(store).map((id) => ({ id, label: heading(id), metric: id })),
  ];
}

function valueOf(cell, axis) {
  if (!axis.metric) return { value: axis.of(cell) };
  const found = cell.statistic(axis.metric);
  if (!found) return { value: null };
  const { factor } = COLUMNS[axis.metric];
  const range = found.interval ?? found;
  return { value: found.value * factor, low: range.low * factor, high: range.high * factor };
}

// A cell as a point of a chart, with whiskers where an axis is a measure.
export function pointOf(cell, x, y, series, hollow) {
  const [across, up] = [valueOf(cell, x), valueOf(cell, y)];
  const repeats = () => cell.repeats.map((repeat) => repeat[y.metric]).filter(Number.isFinite).map((value) => value * COLUMNS[y.metric].factor);
  return { cell, repeats, x: across.value, xLow: across.low, xHigh: across.high, y: up.value, yLow: up.low, yHigh: up.high, series, hollow };
}

// A cell's measure in lines of text: value, interval or range, number of repeats and scope.
export function toldOf(cell, metric) {
  const found = cell.statistic(metric);
  const { label, unit } = COLUMNS[metric];
  if (!found) return [`${label}: not known`];
  const lines = [`${label}: ${shown(metric, found.value)} ${unit}`];
  const { interval } = found;
  const range = ({ low, high }) => `${shown(metric, low)} to ${shown(metric, high)} ${unit}`;
  if (interval) lines.push(`95 % interval ${range(interval)}`);
  lines.push(found.n === 1 ? "one repeat" : `${found.n} repeats, from ${range(found)}`);
  if (interval && cell.scope) lines.push(`interval covers: ${cell.scope}`);
  return lines;
}

export function cellWords(cell) {
  return `${cell.gpu}, ${cell.engine}, ${cell.model}, ${cell.workload}: ${cell.label}`;
}

// A button that opens a cell; its name begins with the columns that tell where it was measured, if any.
export function cellButton(cell, ids) {
  return el("button", { type: "button", class: "link", onclick: () => openCell(cell.cell_id) }, [ids.map((id) => cell[id]).join(", "), cell.label].filter(Boolean).join(": "));
}

// The points of the chart, and the lines that join cells which differ only in the x axis' setting.
function pointsOf(cells, x, y, colourBy, facets) {
  const points = [];
  const series = [];
  const others = facets.filter(({ id }) => id !== x.id && id !== "outcome" && !(x.id === "sequences" && AXIS.has(id)));
  for (const cell of cells) {
    if (!DRAWN.has(cell.outcome)) continue;
    const point = pointOf(cell, x, y, 0, cell.outcome === "invalid");
    if (typeof point.x !== "number" || typeof point.y !== "number") continue;
    let name = colourBy ? colourBy.text(colourBy.of(cell)) : "all cells";
    if (!series.includes(name) && series.length >= MOST_SERIES) name = "others";
    if (!series.includes(name)) series.push(name);
    points.push({ ...point, series: series.indexOf(name) });
  }
  const alike = Map.groupBy(x.isSetting ? points : [], ({ cell }) => JSON.stringify([cell.environment_number, ...others.map((facet) => facet.of(cell))]));
  const lines = [...alike.values()].filter((line) => line.length > 1);
  for (const line of lines) line.sort((a, b) => a.x - b.x);
  return { points, series, lines };
}

// How the cells ended, what their intervals cover, and whether they did different work.
function summaryOf(cells, metric) {
  const of = Map.groupBy(cells, ({ outcome }) => outcome);
  const parts = Object.keys(OUTCOMES).filter((name) => of.has(name)).map((name) => `${of.get(name).length} ${OUTCOMES[name]}`);
  const scopes = new Set(cells.filter((cell) => cell.scope && cell.statistic(metric)?.interval).map(({ scope }) => scope));
  return [
    `${plural(cells.length, "cell")}: ${parts.join(", ") || "none"}.`,
    ...(scopes.size ? [`Intervals cover: ${[...scopes].join("; ")}.`] : []),
    ...unlike(cells, metric),
  ].join(" ");
}

function resultsTable(cells, metric, store) {
  const [hasDevice, hasOutcome] = [several(cells, (cell) => cell.gpu), several(cells, (cell) => cell.outcome)];
  const places = store.differing.filter((id) => id !== "gpu" && several(cells, (cell) => cell[id]));
  const known = cells.map((cell) => cell.statistic(metric)).filter(Boolean);
  const haveIntervals = known.length && known.every(({ interval }) => interval);
  const rows = cells.map((cell) => () => {
    const found = cell.statistic(metric);
    const range = found && (found.interval ?? (found.n > 1 ? found : null));
    return [
      cellButton(cell, hasDevice ? ["gpu"] : []),
      found ? shown(metric, found.value) : "–",
      range ? `${shown(metric, range.low)} to ${shown(metric, range.high)}${found.interval && !haveIntervals ? " (95\u00a0%)" : ""}` : "–",
      found ? String(found.n) : "–",
      ...places.map((id) => cell[id]),
      ...(hasOutcome ? [OUTCOMES[cell.outcome] ?? cell.outcome] : []),
    ];
  });
  const headings = ["Settings", heading(metric), haveIntervals ? "95 % interval" : "Range or interval", "Repeats", ...places.map((id) => PLACES[id]), ...(hasOutcome ? ["Outcome"] : [])];
  return longTable(`Cells by ${COLUMNS[metric].label}`, headings, rows, headings.map((_, i) => i > 0 && i < 4));
}

function ordered(cells, metric) {
  const sign = COLUMNS[metric].more ? -1 : 1;
  const rank = new Map(cells.map((cell) => [cell, sign * (cell.statistic(metric)?.value ?? sign * Infinity)]));
  return [...cells].sort((a, b) => rank.get(a) - rank.get(b));
}

// Where the reader has chosen nothing yet: the engine, model, workload and environment of the most cells, the rate that
// compares them, and colours by a setting in which they differ.
function firstChoice(store, facets) {
  const names = store.differing.filter((id) => id !== "gpu");
  if (facets.some(({ id }) => current().has(id))) return {};
  const places = Map.groupBy(store.cells, (cell) => JSON.stringify(names.map((id) => cell[id])));
  const most = [...places.values()].reduce((largest, of) => (of.length > largest.length ? of : largest));
  const by = facets.find(({ id, of }) => !AXIS.has(id) && several(most, of))?.id;
  const chosen = { by, ...(fairRate(most) === RATE ? {} : { y: STEADY }) };
  for (const name of Object.keys(chosen)) if (current().has(name)) delete chosen[name];
  return { ...chosen, ...Object.fromEntries(names.map((id) => [id, most[0][id]])) };
}

// Fill the panel; `store` holds the data.
export function showExplore(panel, store) {
  const facets = facetsOf(store);
  const metrics = metricsWithValues(store);
  const axes = axesOf(store, facets);
  if (!metrics.length) {
    panel.replaceChildren(el("p", { class: "absent" }, "No cell has been measured yet, so there is nothing to draw."));
    return;
  }
  const summary = el("p", { class: "note", role: "status" });
  const legend = el("div");
  const box = el("div", { class: "chart" });
  const table = el("div");
  const controls = el("div", { class: "controls" });
  const form = el("div");

  // An axis is logarithmic if its values span a wide range: settings are mostly powers of two.
  const isLog = (axis) => isWide(store.cells.map((cell) => valueOf(cell, axis).value).filter((value) => typeof value === "number"), axis.isSetting ? 4 : MANY_TIMES);
  const axisOf = (axis) => {
    const values = axis.isSetting ? [...new Set(store.cells.map(axis.of))].filter((value) => typeof value === "number").sort((a, b) => a - b) : [];
    const few = values.length && values.length <= 12;
    return { label: axis.label, isLog: isLog(axis), ticks: few ? values : undefined, text: axis.isSetting ? setting : undefined };
  };
  const axesNow = (parameters) => {
    const metric = metrics.includes(parameters.get("y")) ? parameters.get("y") : metrics[0];
    const y = { id: metric, label: heading(metric), metric };
    const x = axes.find(({ id }) => id === parameters.get("x")) ?? axes[0];
    return { metric, x, y };
  };

  const update = (changes = {}) => {
    const parameters = changeAddress({ view: "explore", ...changes });
    const { metric, x, y } = axesNow(parameters);
    const colours = facets.filter((facet) => facet.id !== "outcome" && facet.values.length <= MOST_SERIES);
    const colourBy = colours.find(({ id }) => id === parameters.get("by")) ?? colours[0];
    const cells = filtered(store.cells, facets, parameters);
    const drawn = pointsOf(cells, x, y, colourBy, facets);
    const places = colourBy ? colourBy.values.map(colourBy.text) : ["all cells"];
    const shapes = drawn.series.map((name) => Math.max(0, places.indexOf(name)));
    const series = drawn.series.map((name, i) => ({ name, colour: deviceColour(shapes[i]), shape: shapes[i] }));
    summary.textContent = summaryOf(cells, metric);
    chart.show({ ...drawn, series, x: axisOf(x), y: axisOf(y), label: `${y.label} against ${x.label}, ${plural(drawn.points.length, "point")}.` });
    legend.replaceChildren(keysOf(series));
    table.replaceChildren(resultsTable(ordered(cells, metric), metric, store));
    return { parameters, metric, x, colourBy, colours };
  };

  const chart = new Chart(box, {
    pick: (point) => openCell(point.cell.cell_id),
    describe: (point) => {
      const { metric, x: { metric: other } } = axesNow(current());
      return [cellWords(point.cell), ...toldOf(point.cell, metric), ...(other && other !== metric ? toldOf(point.cell, other) : [])];
    },
  });
  // The other quantities are behind the last choice, unless one of them is shown.
  const show = (isShort) => {
    const offered = metrics.slice(0, isShort ? MOST_MAIN : metrics.length).map((name) => [name, COLUMNS[name].label]);
    const control = choice("Show", offered.length < metrics.length ? [...offered, ["", "More quantities …"]] : offered, axesNow(current()).metric, (value) => {
      if (value) return update({ y: value });
      control.replaceWith(show(false));
      return controls.querySelector("select").focus();
    });
    return control;
  };
  const now = update(firstChoice(store, facets));
  controls.prepend(
    show(metrics.indexOf(now.metric) < MOST_MAIN),
    choice("Against", axes.map((axis) => [axis.id, axis.label]), now.x.id, (value) => update({ x: value })),
    ...(now.colours.length ? [choice("Colour by", now.colours.map((facet) => [facet.id, facet.words]), now.colourBy?.id, (value) => update({ by: value }))] : []),
  );
  const filterBy = ({ parameters }) => filterForm(facets, parameters, (id, values) => update({ [id]: values }));
  form.append(
    filterBy(now),
    el("button", { type: "button", class: "plain", onclick: () => form.firstChild.replaceWith(filterBy(update(Object.fromEntries(facets.map(({ id }) => [id, []]))))) }, "Clear the filter"),
  );
  panel.replaceChildren(
    el("h1", {}, "Explore"),
    ...[legend, box, controls, form, summary],
    el("p", { class: "note" }, "A point is the value of a cell. Its bar is the 95 % interval, or the range of the repeats if no interval is known; of up to 200 cells, short lines across it are the repeats. Lines join cells of one environment that differ only in the setting below the chart. Points of the same setting stand side by side, so that they do not hide each other. Hollow points failed a check. Click a point or the settings in a row to open the cell."),
    table,
  );
  chart.redraw();
}
