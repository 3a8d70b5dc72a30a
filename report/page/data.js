// The data of the page: a compressed block, unpacked when a view first needs it.

export async function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Every column as a list of its values.
export function plainColumns(columns) {
  const plain = (column) => (Array.isArray(column) ? column : column.at.map((at) => (at === null ? null : column.of[at])));
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, plain(column)]));
}

// Columns as rows: one object per row.
export function rowsOf(columns) {
  const lists = Object.entries(plainColumns(columns));
  return Array.from({ length: lists[0]?.[1].length ?? 0 }, (_, i) => Object.fromEntries(lists.map(([name, list]) => [name, list[i]])));
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Every cell as an object, with its repeats, limits, predictions and intervals.
export function storeOf(data) {
  const cells = rowsOf(data.cells).map((cell) => ({ ...cell, repeats: [], limits: [], predictions: [], intervals: {} }));
  for (const repeat of rowsOf(data.repeats)) cells[repeat.cell].repeats.push(repeat);
  for (const limit of rowsOf(data.limits)) cells[limit.cell].limits.push(limit);
  for (const prediction of rowsOf(data.predictions)) cells[prediction.cell].predictions.push(prediction);
  for (const interval of rowsOf(data.intervals)) cells[interval.cell].intervals[interval.measure] = interval;
  return { ...data, cells, byId: new Map(cells.map((cell) => [cell.cell_id, cell])) };
}

// A cell's measure: the table's value with its 95 % interval if a table holds one, otherwise the median of its repeats
// with their range.
export function statistic(cell, measure) {
  const values = [];
  for (const repeat of cell.repeats) {
    const value = repeat[measure];
    if (value !== null && value !== undefined) values.push(value);
  }
  if (!values.length) return null;
  const interval = cell.intervals[measure] ?? null;
  return {
    value: interval?.value ?? median(values),
    low: Math.min(...values),
    high: Math.max(...values),
    n: values.length,
    interval,
  };
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
  const { colours, ...data } = await packed();
  for (const name of ["cells", "repeats", "limits", "predictions", "intervals"]) data[name] = plainColumns(data[name]);
  data.timelines = {};
  for (const node of document.querySelectorAll("template.timeline")) {
    const tables = Object.entries(await unpack(node.content.textContent));
    data.timelines[node.dataset.cell] = Object.fromEntries(tables.map(([name, table]) => [name, plainColumns(table.columns)]));
  }
  return data;
}
