// The view Your limits: the settings within a reader's own limits of latency, and the cost of tokens.
import { changeAddress, current } from "./address.js";
import { deviceColour } from "./canvas.js";
import { Chart, keysOf } from "./chart.js";
import { choice, el, longTable } from "./dom.js";
import { openCell } from "./drawer.js";
import { MANY_TIMES, cellButton, cellWords, pointOf, toldOf } from "./explore.js";
import { RATE, STEADY, fairRate, unlike } from "./fair.js";
import { isWide } from "./scale.js";
import { COLUMNS } from "./columns.js";
import { heading, number, plural, shown } from "./words.js";

const ENERGY = "energy_j_per_output_token";
const GOALS = new Map([["rate", COLUMNS[RATE].label], ["price", "Price per million output tokens"], ["energy", COLUMNS[ENERGY].label]]);
const FEW_ABOVE = 5;
const BOUNDS = { ttft: "ttft_s", tpot: "tpot_s", e2e: "e2e_s" };

// Inputs whose values are in the address.
function numberInput(label, name, changed) {
  const input = el("input", {
    type: "number", min: Number.MIN_VALUE, step: "any", value: current().get(name) ?? "", inputmode: "decimal",
    oninput: () => {
      changeAddress({ [name]: input.validity.valid ? input.value : null });
      changed();
    },
  });
  return {
    node: el("label", { class: "choice" }, el("span", {}, label), input, el("span", { class: "wrong" }, "Not a number above 0, so it is not used")),
    // The number, or null if the field is empty or holds none above 0.
    value: () => (input.value !== "" && input.validity.valid ? Number(input.value) : null),
  };
}

function choiceInput(label, name, options, fallback, changed) {
  const isKnown = (of) => options.some(([value]) => value === of);
  let value = [current().get(name), fallback].find(isKnown) ?? options[0]?.[0];
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

// Which of the bounds (in seconds, null is no bound) a cell breaks most in its worst repeat: words, and how many times
// the bound it takes; null if it keeps them.
export function brokenBound(cell, bounds, percentile) {
  const broken = Object.entries(bounds).filter(([, bound]) => bound !== null).flatMap(([id, bound]) => {
    const [found, { label }] = [cell.statistic(`${BOUNDS[id]}_p${percentile}`), COLUMNS[BOUNDS[id]]];
    if (!found) return [{ words: `${label} not known`, times: Infinity }];
    return found.high > bound ? [{ words: `${label} ${shown(BOUNDS[id], found.high)} ${COLUMNS[BOUNDS[id]].unit} in its worst repeat`, times: found.high / bound }] : [];
  });
  return broken.sort((a, b) => b.times - a.times)[0] ?? null;
}

// Whether so few requests lie above a percentile that it is about the slowest one.
function isOfFew(cell, percentile) {
  return (cell.statistic("num_requests")?.value ?? 0) * (1 - percentile / 100) < FEW_ABOVE;
}

function scored(cell, prices, metric) {
  const rate = cell.statistic(metric);
  const range = rate.interval ?? rate;
  const perHour = (cell.output_tokens_per_device_hour * rate.value) / cell.statistic(RATE).value;
  const price = prices.get(cell.gpu);
  const energy = cell.statistic(ENERGY)?.value ?? null;
  return { cell, rate: rate.value, low: range.low, high: range.high, price: price ? (1e6 * price) / perHour : null, energy };
}

export function showLimits(panel, store) {
  const cells = store.cells.filter((cell) => cell.outcome === "ok" && cell.comparable !== false && cell.statistic(RATE));
  if (!cells.length) {
    panel.replaceChildren(el("p", { class: "absent" }, "No cell has been measured yet, so no setting can be chosen."));
    return;
  }
  const devices = [...new Set(cells.map((cell) => cell.gpu))];
  const differing = store.differing.filter((id) => id === "gpu" || id === "engine");
  // The cells of each model, workload and environment, those with the most cells first.
  const works = new Map([...Map.groupBy(cells, ({ model, workload, environment }) => [model, workload, environment].filter(Boolean).join(", "))].sort(([, a], [, b]) => b.length - a.length));
  const percentiles = ["50", "90", "99"].filter((p) => Object.values(BOUNDS).some((column) => store.repeats[`${column}_p${p}`]));
  const out = el("p", { role: "status" });
  const table = el("div");
  const legend = el("div");
  const box = el("div", { class: "chart" });
  const inputs = {
    work: choiceInput("Model and workload", "work", [...works.keys()].map((work) => [work, work]), "", changed),
    percentile: choiceInput("Percentile of the requests", "p", percentiles.map((p) => [p, p === "50" ? "median" : `${p} % of the requests`]), "99", changed),
    ...Object.fromEntries(Object.entries(BOUNDS).map(([id, column]) => [id, numberInput(`At most: ${heading(column)}`, id, changed)])),
    goal: choiceInput("Order by", "best", [...GOALS], "rate", changed),
  };
  const prices = devices.map((device) => ({ device, ...numberInput(`Price of one ${device} for an hour`, `price.${device}`, changed) }));
  const chart = new Chart(box, {
    pick: (point) => openCell(point.cell.cell_id),
    describe: (point) => [cellWords(point.cell), ...toldOf(point.cell, fairRate(works.get(inputs.work.value()))), ...toldOf(point.cell, axisColumn())],
  });
  // The latency that the reader limits.
  const axis = () => Object.keys(BOUNDS).find((id) => inputs[id].value() !== null) ?? "tpot";
  const axisColumn = () => {
    const wanted = `${BOUNDS[axis()]}_p${inputs.percentile.value()}`;
    return COLUMNS[wanted] && store.repeats[wanted] ? wanted : `${BOUNDS[axis()]}_p50`;
  };

  const draw = (candidates, keeps, rate) => {
    const column = axisColumn();
    const points = candidates.flatMap((cell) => {
      if (!cell.statistic(column)) return [];
      return [pointOf(cell, { metric: column }, { metric: rate }, devices.indexOf(cell.gpu), !keeps.has(cell))];
    });
    const series = devices.map((device, i) => ({ name: device, colour: deviceColour(i), shape: i }));
    const front = paretoFront(points.filter((point) => !point.hollow));
    const limit = inputs[axis()].value();
    const x = { label: `${heading(column)}${limit ? "; the upright line is your limit" : ""}`, isLog: true, limit };
    const y = { label: heading(rate), isLog: isWide(points.map((point) => point.y), MANY_TIMES) };
    const label = `${y.label} against ${x.label}: ${plural(points.length, "cell")}, ${front.length} on the Pareto front.`;
    chart.show({ points, lines: front.length > 1 ? [front] : [], series, x, y, label, isFront: true });
    legend.replaceChildren(keysOf(series));
  };

  function changed() {
    changeAddress({ view: "limits" });
    const percentile = inputs.percentile.value();
    const seconds = (bound, column) => (bound === null ? null : bound / COLUMNS[column].factor);
    const bounds = Object.fromEntries(Object.entries(BOUNDS).map(([id, column]) => [id, seconds(inputs[id].value(), column)]));
    const known = new Map(prices.map(({ device, value }) => [device, value()]));
    const candidates = works.get(inputs.work.value());
    const metric = fairRate(candidates);
    const isLimited = Object.values(bounds).some((bound) => bound !== null);
    const ranked = candidates.map((cell) => ({ ...scored(cell, known, metric), broken: brokenBound(cell, bounds, percentile) }));
    const asked = inputs.goal.value();
    const goal = ranked.some((one) => one[asked] !== null) ? asked : "rate";
    ranked.sort((a, b) => Boolean(a.broken) - Boolean(b.broken) || (a[goal] === null) - (b[goal] === null) || (goal === "rate" ? -1 : 1) * (a[goal] - b[goal]));
    const keeping = ranked.filter(({ broken }) => broken === null).map(({ cell }) => cell);
    const nearest = ranked.filter(({ broken }) => broken && broken.times < Infinity).sort((a, b) => a.broken.times - b.broken.times)[0];
    out.textContent = [
      ...(goal === asked ? [] : [`${asked === "price" ? "Enter a price to order by it" : `${GOALS.get(asked)} is not known`}; the order is by ${GOALS.get(goal)}.`]),
      isLimited ? `${keeping.length} of ${plural(candidates.length, "measured cell")} keep the limits in every repeat.` : `No limit is set: ${plural(candidates.length, "measured cell")}.`,
      ...(nearest && !keeping.length ? [`The nearest takes ${number(nearest.broken.times)} times its limit: ${nearest.cell.gpu}, ${nearest.cell.label} (${nearest.broken.words}).`] : []),
      ...unlike(candidates, metric),
      ...(metric === STEADY ? ["They served different requests, so rates and prices are those while the engine is full; latencies and energy are of whole repeats."] : []),
      ...(candidates.some((cell) => isOfFew(cell, percentile)) ? [`* Fewer than ${FEW_ABOVE} requests of a repeat took longer than this percentile, so it is about the slowest ones.`] : []),
    ].join(" ");
    draw(candidates, new Set(keeping), metric);
    const columns = Object.values(BOUNDS).map((column) => `${column}_p${percentile}`).filter((column) => COLUMNS[column] && store.repeats[column]);
    const [cost, energy] = ["price", "energy"].map((name) => ranked.some((one) => one[name] !== null));
    const headings = ["Settings", ...(isLimited ? ["Within the limits"] : []), heading(metric), ...(cost ? [GOALS.get("price")] : []), ...columns.map(heading), ...(energy ? [heading(ENERGY)] : [])];
    const rows = ranked.map(({ cell, broken, rate, low, high, price, energy: joules }) => () => [
      cellButton(cell, differing),
      ...(isLimited ? [broken ? `no: ${broken.words}` : "yes"] : []),
      `${number(rate)} (${number(low)} to ${number(high)})`,
      ...(cost ? [number(price)] : []),
      ...columns.map((column) => `${shown(column, cell.statistic(column)?.value)}${isOfFew(cell, percentile) ? " *" : ""}`),
      ...(energy ? [number(joules)] : []),
    ]);
    table.replaceChildren(longTable(`Settings by ${GOALS.get(goal)}, those within the limits first`, headings, rows, headings.map((_, i) => i > isLimited)));
  }
  panel.replaceChildren(
    el("h1", {}, "Your limits"),
    el("p", { class: "lead" }, "Set how long a request may take and what a device costs. A setting keeps a limit if the chosen share of its requests does so in every repeat. An empty field sets no limit."),
    el("div", { class: "controls" }, Object.values(inputs).map(({ node }) => node), prices.map(({ node }) => node)),
    ...[out, legend, box],
    el("p", { class: "note" }, "The line between points is the Pareto front: no other setting within the limits is faster at the same or a lower latency. It is of the values alone: where intervals overlap, another run may have another front. Bars and brackets are 95 % intervals if they are known, otherwise the range of the repeats. Hollow points do not keep the limits in their worst repeat, although their value over all repeats may. If a workload submits all requests at once, TTFT includes the wait for a free place."),
    table,
  );
  changed();
  chart.redraw();
}
