// Numbers and names in words.
import { COLUMNS } from "./columns.js";

export const UNKNOWN = "–";

// Where a cell was measured: columns, and their names.
export const PLACES = { gpu: "Device", engine: "Engine", model: "Model", workload: "Workload", environment: "Environment" };

export const OUTCOMES = {
  ok: "measured",
  infeasible: "infeasible",
  timeout: "timeout",
  engine_error: "engine error",
  invalid: "invalid",
  unknown: "not known",
  missing: "not run",
};

// Three significant digits, thousands separated: 12,300 or 0.0123; one more if it would look like 1.
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e15) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits + (Number(value.toPrecision(digits)) === 1))).toLocaleString("en", { maximumFractionDigits: 10 });
}

// A value of a column in the unit in which the column is shown.
export function shown(column, value) {
  const { factor, digits } = COLUMNS[column];
  return number(typeof value === "number" ? value * factor : null, digits);
}

// A column's label with its unit.
export function heading(column) {
  const { label, unit } = COLUMNS[column];
  return unit ? `${label} (${unit})` : label;
}

export function setting(value) {
  if (value === true) return "on";
  if (value === false) return "off";
  if (value === null || value === undefined) return "engine's default";
  return typeof value === "number" ? number(value, 12) : String(value);
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
