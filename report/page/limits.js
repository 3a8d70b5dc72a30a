// The view Your limits: the settings within a reader's own limits of latency, and the cost of tokens.
import { changeAddress, current } from "./address.js";
import { Chart, legendOf } from "./chart.js";
import { choice, el, longTable } from "./dom.js";
import { openCell } from "./drawer.js";
import { MANY_TIMES, cellWords, pointOf, toldOf } from "./explore.js";
import { isWide } from "./scale.js";
import { COLUMNS } from "./columns.js";
import { heading, number, plural, shown } from "./words.js";

const RATE = "output_tokens_per_s";
const ENERGY = "energy_j_per_output_token";
const GOALS = new Map([["rate", COLUMNS[RATE].label], ["perPrice", "Tokens per unit of money"], ["energy", COLUMNS[ENERGY].label]]);
const BOUNDS = { ttft: "ttft_s", tpot: "tpot_s", e2e: "e2e_s" };

// Inputs whose values are in the address.
function numberInput(label, name, changed) {
  const input = el("input", {
    type: "number", min: 0, step: "any", value: current().get(name) ?? "", inputmode: "decimal",
    oninput: () => {
      changeAddress({ [name]: input.value });
      changed();
    },
  });
  return {
    node: el("label", { class: "choice" }, el("span", {}, label), input),
    // The number, or null if the field is empty or holds none in its range.
    value: () => (input.value !== "" && input.validity.valid ? Number(input.value) : null),
  };
}

function choiceInput(label, name, options, fallback, changed) {
  const known = new Set(options.map(([value]) => value));
  let value = current().get(name);
  if (!known.has(value)) value = known.has(fallback) ? fallback : options[0]?.[0];
  const node = choice(label, options, value, (next) => {
    value = next;
    changeAddress({ [name]: next });
    changed();
  });
  return { node, value: () => value };
}

// Points for which no other has at least the same rate with a lower latency, or a higher rate with the same latency.
// Equal points are all on the front.
export function paretoFront(points) {
  const front = [];
  let best = -Infinity;
  const sorted = [...points].sort((a, b) => a.x - b.x || b.y - a.y);
  for (const point of sorted) {
    const last = front.at(-1);
    if (point.y > best || (last && point.x === last.x && point.y === last.y)) {
      front.push(point);
      best = point.y;
    }
  }
  return front;
}

// Why a cell breaks the bounds (in seconds, null is no bound) in its worst repeat; null if it keeps them.
export function brokenBound(cell, bounds, percentile) {
  for (const [id, bound] of Object.entries(bounds)) {
    if (bound === null) continue;
    const found = cell.statistic(`${BOUNDS[id]}_p${percentile}`);
    if (!found) return `${COLUMNS[BOUNDS[id]].label} not known`;
    if (found.high > bound) return `${COLUMNS[BOUNDS[id]].label} too long`;
  }
  return null;
}

function scored(cell, prices) {
  const rate = cell.statistic(RATE);
  const range = rate.interval ?? rate;
  const price = prices.get(cell.gpu);
  const energy = cell.statistic(ENERGY)?.value ?? null;
  return { cell, rate: rate.value, low: range.low, high: range.high, perPrice: price ? cell.output_tokens_per_device_hour / price : null, energy };
}

export function showLimits(panel, store) {
  const cells = store.cells.filter((cell) => cell.outcome === "ok" && cell.comparable !== false && cell.statistic(RATE));
  if (!cells.length) {
    panel.replaceChildren(el("p", { class: "absent" }, "No cell has been measured yet, so no setting can be chosen."));
    return;
  }
  const devices = [...new Set(cells.map((cell) => cell.gpu))];
  // The cells of each model and workload, those with the most cells first.
  const works = new Map([...Map.groupBy(cells, ({ model, workload }) => `${model}, ${workload}`)].sort(([, a], [, b]) => b.length - a.length));
  const percentiles = ["50", "90", "99"].filter((p) => Object.values(BOUNDS).some((column) => store.repeats[`${column}_p${p}`]));
  const out = el("p", { role: "status" });
  const table = el("div");
  const legend = el("div", { class: "legend", role: "group", "aria-label": "Devices: show or hide" });
  const box = el("div", { class: "chart" });
  const changed = () => update();
  const inputs = {
    work: choiceInput("Model and workload", "work", [...works.keys()].map((work) => [work, work]), "", changed),
    percentile: choiceInput("Percentile of the requests", "p", percentiles.map((p) => [p, p === "50" ? "median" : `${p} % of the requests`]), "99", changed),
    ...Object.fromEntries(Object.entries(BOUNDS).map(([id, column]) => [id, numberInput(`At most: ${heading(column)}`, id, changed)])),
    goal: choiceInput("Order by", "best", [...GOALS], "rate", changed),
    axis: choiceInput("Latency in the chart", "lat", Object.entries(BOUNDS).map(([id, column]) => [id, COLUMNS[column].label]), "tpot", changed),
  };
  const prices = devices.map((device) => ({ device, ...numberInput(`Price of an hour of ${device}`, `price.${device}`, changed) }));
  const chart = new Chart(box, {
    pick: (point) => openCell(point.cell.cell_id),
    describe: (point) => [cellWords(point.cell), ...toldOf(point.cell, RATE), ...toldOf(point.cell, axisColumn())],
  });
  const axisColumn = () => {
    const wanted = `${BOUNDS[inputs.axis.value()]}_p${inputs.percentile.value()}`;
    return COLUMNS[wanted] && store.repeats[wanted] ? wanted : `${BOUNDS[inputs.axis.value()]}_p50`;
  };

  const draw = (candidates, keeps) => {
    const column = axisColumn();
    const hidden = new Set(current().getAll("hide"));
    const points = candidates.flatMap((cell) => {
      if (!cell.statistic(column) || hidden.has(cell.gpu)) return [];
      return [pointOf(cell, { metric: column }, { metric: RATE }, devices.indexOf(cell.gpu), !keeps.has(cell))];
    });
    const series = devices.map((device, i) => ({ name: device, colour: store.colours[i % store.colours.length], shape: i }));
    const front = paretoFront(points.filter((point) => !point.hollow));
    chart.show({ points, lines: front.length > 1 ? [front] : [], series, x: { label: heading(column), isLog: true }, y: { label: heading(RATE), isLog: isWide(points.map((point) => point.y), MANY_TIMES) }, label: `Throughput against latency, ${plural(points.length, "cell")}, ${front.length} on the Pareto front.` });
    legend.replaceChildren(...legendOf(series, hidden, (device) => {
      if (!hidden.delete(device)) hidden.add(device);
      changeAddress({ hide: [...hidden] });
      update();
    }));
    return new Set(front.map((point) => point.cell));
  };

  const update = () => {
    changeAddress({ view: "limits" });
    const percentile = inputs.percentile.value();
    const seconds = (bound, column) => (bound === null ? null : bound / COLUMNS[column].factor);
    const bounds = Object.fromEntries(Object.entries(BOUNDS).map(([id, column]) => [id, seconds(inputs[id].value(), column)]));
    const known = new Map(prices.map(({ device, value }) => [device, value()]));
    const candidates = works.get(inputs.work.value());
    const goal = inputs.goal.value();
    const sign = goal === "energy" ? 1 : -1;
    const ranked = candidates
      .map((cell) => ({ ...scored(cell, known), broken: brokenBound(cell, bounds, percentile) }))
      .sort((a, b) => Boolean(a.broken) - Boolean(b.broken) || (a[goal] === null) - (b[goal] === null) || sign * (a[goal] - b[goal]));
    const keeping = ranked.filter(({ broken }) => broken === null).map(({ cell }) => cell);
    out.textContent = `${keeping.length} of ${plural(candidates.length, "measured cell")} keep the limits in every repeat.`;
    const front = draw(candidates, new Set(keeping));
    const columns = Object.values(BOUNDS).map((column) => `${column}_p${percentile}`).filter((column) => COLUMNS[column] && store.repeats[column]);
    const cost = ranked.some((one) => one.perPrice !== null);
    const energy = ranked.some((one) => one.energy !== null);
    const headings = ["Settings", "Device", "Engine", "Within the limits", heading(RATE), "Range or interval", ...columns.map(heading), ...(cost ? ["Tokens per unit of money"] : []), ...(energy ? [heading(ENERGY)] : []), "Pareto front"];
    const rows = ranked.map(({ cell, broken, rate, low, high, perPrice, energy: joules }) => () => [
      el("button", { type: "button", class: "link", onclick: () => openCell(cell.cell_id) }, cell.label),
      cell.gpu,
      cell.engine,
      broken ?? "yes",
      number(rate),
      `${number(low)} to ${number(high)}`,
      ...columns.map((column) => shown(column, cell.statistic(column)?.value)),
      ...(cost ? [number(perPrice)] : []),
      ...(energy ? [number(joules)] : []),
      front.has(cell) ? "yes" : "no",
    ]);
    const numeric = headings.map((_, i) => i > 3 && i < headings.length - 1);
    table.replaceChildren(longTable(`Settings by ${GOALS.get(goal)}, those within the limits first`, headings, rows, numeric));
  };
  panel.replaceChildren(
    el("h2", {}, "Your limits"),
    el("p", { class: "lead" }, "Set how long a request may take and what a device costs. A setting keeps a limit if the chosen share of its requests does so in every repeat. An empty field sets no limit."),
    el("div", { class: "controls" }, Object.values(inputs).map(({ node }) => node), prices.map(({ node }) => node)),
    out,
    legend,
    box,
    el("p", { class: "note" }, "The line is the Pareto front: no other setting within the limits is faster at the same or a lower latency. Bars are 95 % intervals if they are known, otherwise the range of the repeats. Hollow points do not keep the limits. If a workload submits all requests at once, TTFT includes the wait for a free place."),
    table,
  );
  update();
  chart.redraw();
}
