// The data of the page: a compressed block, unpacked when a view first needs it.
import { PLACES } from "./words.js";

export async function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Every column as a list of its values.
function plainColumns(columns) {
  const plain = (column) => (Array.isArray(column) ? column : column.at.map((at) => (at === null ? null : column.of[at])));
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, plain(column)]));
}

// Columns as rows: one object per row.
export function rowsOf(columns) {
  const lists = Object.entries(plainColumns(columns));
  return Array.from({ length: lists[0]?.[1].length ?? 0 }, (_, i) => Object.fromEntries(lists.map(([name, list]) => [name, list[i]])));
}

// A table whose rows belong to cells. Rows become objects only when they are needed: a large study has 100,000.
function tableByCell(columns) {
  const plain = plainColumns(columns);
  const { cell: cells = [] } = plain;
  const places = Map.groupBy(cells.keys(), (row) => cells[row]);
  const rowsOfCell = (place) => places.get(place) ?? [];
  const of = (place) => rowsOfCell(place).map((row) => Object.fromEntries(Object.entries(plain).map(([name, values]) => [name, values[row]])));
  return { plain, rowsOfCell, of };
}

// A measure by cell: its value with the 95 % interval, if one is known, and the range of the repeats; null for cells
// without a value.
function statisticsOf(values, repeats, intervals, measure) {
  const { measure: measures = [], low, high } = intervals.plain;
  return (values[measure] ?? []).map((value, place) => {
    if (value === null) return null;
    const known = repeats.rowsOfCell(place).map((row) => repeats.plain[measure][row]).filter((of) => of !== null);
    const row = intervals.rowsOfCell(place).find((candidate) => measures[candidate] === measure);
    const interval = row === undefined ? null : { low: low[row], high: high[row] };
    return { value, low: Math.min(...known), high: Math.max(...known), n: known.length, interval };
  });
}

// Every cell as an object, with its repeats, limits and predictions; and of which places there are several.
export function storeOf(data) {
  const [repeats, limits, predictions, intervals] = ["repeats", "limits", "predictions", "intervals"].map((name) => tableByCell(data[name]));
  const byMeasure = new Map();
  const statistics = (measure) => {
    if (!byMeasure.has(measure)) byMeasure.set(measure, statisticsOf(data.values, repeats, intervals, measure));
    return byMeasure.get(measure);
  };
  const cells = rowsOf(data.cells).map((cell, place) => Object.defineProperties(cell, {
    repeats: { get: () => repeats.of(place) },
    limits: { get: () => limits.of(place) },
    predictions: { get: () => predictions.of(place) },
    statistic: { value: (measure) => statistics(measure)[place] ?? null },
  }));
  const differing = Object.keys(PLACES).filter((name) => new Set(cells.map((cell) => cell[name])).size > 1);
  return { ...data, cells, differing, byId: new Map(cells.map((cell) => [cell.cell_id, cell])) };
}

function packed() {
  return unpack(document.getElementById("page-data").content.textContent);
}

let loaded = null;

export function store() {
  loaded ??= packed().then(storeOf);
  return loaded;
}

// Everything that the page holds, for other programs: each table as lists by column, and timelines by cell.
export async function allData() {
  const data = { ...(await packed()) };
  for (const name of ["cells", "repeats", "limits", "predictions", "values", "intervals"]) data[name] = plainColumns(data[name]);
  data.timelines = {};
  for (const node of document.querySelectorAll("template.timeline")) {
    const tables = Object.entries(await unpack(node.content.textContent));
    data.timelines[node.dataset.cell] = Object.fromEntries(tables.map(([name, table]) => [name, plainColumns(table.columns)]));
  }
  return data;
}
