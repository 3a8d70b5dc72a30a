// Which rate compares cells, and why an order of them may not rank settings.
import { COLUMNS } from "./columns.js";

export const RATE = "output_tokens_per_s";
export const STEADY = "steady_output_tokens_per_s";

export const several = (cells, of) => new Set(cells.map(of).filter((value) => value !== undefined && value !== "")).size > 1;
const requestsDiffer = (cells) => several(cells, (cell) => cell.statistic("num_requests")?.value);

// The rate that compares cells: that of the time while the engine is full if they served other requests and all have it.
export function fairRate(cells) {
  const measured = cells.filter((cell) => cell.statistic(RATE));
  return requestsDiffer(measured) && measured.every((cell) => cell.statistic(STEADY)) ? STEADY : RATE;
}

// Why the order of cells by a measure does not rank settings, in sentences.
export function unlike(cells, metric) {
  const told = [
    [several(cells, ({ model, workload }) => `${model}, ${workload}`), "These cells have several models or workloads: they did different work, so their order does not rank settings."],
    [metric !== STEADY && requestsDiffer(cells), `These cells served different numbers of requests, which ${COLUMNS[STEADY].label} allows for.`],
    [several(cells, ({ environment }) => environment), "These cells ran in several environments (in the report, Provenance), which are not compared."],
  ];
  return told.filter(([isSo]) => isSo).map(([, words]) => words);
}
