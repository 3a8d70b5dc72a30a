// Numbers and names in words.

export const UNKNOWN = "–";

export const OUTCOMES = {
  ok: "measured",
  infeasible: "infeasible",
  timeout: "ran out of time",
  engine_error: "engine failed",
  invalid: "failed a check",
  missing: "not run",
};

// What a view may draw: column -> name, unit, factor from the column's unit to that unit, and whether more is better.
export const METRICS = {
  output_tokens_per_s: { name: "Output tokens per second", unit: "tokens/s", factor: 1, more: true },
  steady_output_tokens_per_s: { name: "Output tokens per second in the steady part", unit: "tokens/s", factor: 1, more: true },
  drain_share: { name: "Time after the steady part (drain)", unit: "%", factor: 100 },
  total_tokens_per_s: { name: "Total tokens per second (prompt and output)", unit: "tokens/s", factor: 1, more: true },
  requests_per_s: { name: "Requests per second", unit: "requests/s", factor: 1, more: true },
  goodput_requests_per_s: { name: "Requests per second within the study's limits", unit: "requests/s", factor: 1, more: true },
  ttft_s_p50: { name: "Time to first token (TTFT), median", unit: "ms", factor: 1000 },
  ttft_s_p90: { name: "Time to first token (TTFT), 90th percentile", unit: "ms", factor: 1000 },
  ttft_s_p99: { name: "Time to first token (TTFT), 99th percentile", unit: "ms", factor: 1000 },
  queue_s_p50: { name: "Wait until the engine first schedules the request, median", unit: "ms", factor: 1000 },
  prefill_s_p50: { name: "From there to the first token, median", unit: "ms", factor: 1000 },
  tpot_s_p50: { name: "Time per output token (TPOT), median", unit: "ms", factor: 1000 },
  tpot_s_p90: { name: "Time per output token (TPOT), 90th percentile", unit: "ms", factor: 1000 },
  tpot_s_p99: { name: "Time per output token (TPOT), 99th percentile", unit: "ms", factor: 1000 },
  itl_s_p50: { name: "Time between tokens (ITL), median", unit: "ms", factor: 1000 },
  itl_s_p99: { name: "Time between tokens (ITL), 99th percentile", unit: "ms", factor: 1000 },
  e2e_s_p50: { name: "End-to-end latency, median", unit: "s", factor: 1 },
  e2e_s_p90: { name: "End-to-end latency, 90th percentile", unit: "s", factor: 1 },
  e2e_s_p99: { name: "End-to-end latency, 99th percentile", unit: "s", factor: 1 },
  energy_j_per_output_token: { name: "Energy per output token", unit: "J/token", factor: 1 },
  power_w_mean: { name: "Mean power", unit: "W", factor: 1 },
  power_cap_share: { name: "Samples at the power limit", unit: "%", factor: 100 },
  sm_clock_mhz_median: { name: "Clock of the multiprocessors, median", unit: "MHz", factor: 1 },
  sm_clock_mhz_min: { name: "Clock of the multiprocessors, lowest", unit: "MHz", factor: 1 },
  mbu: { name: "Memory bandwidth used (MBU)", unit: "%", factor: 100, more: true },
  mfu: { name: "Arithmetic used (MFU)", unit: "%", factor: 100, more: true },
  kv_cache_usage_peak: { name: "KV blocks in use, peak", unit: "%", factor: 100 },
  memory_used_bytes_max: { name: "Memory in use, peak", unit: "GiB", factor: 2 ** -30 },
};

// Three significant digits, thousands separated: 12,300 or 0.0123.
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e15) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 10 });
}

export function withUnit(value, unit) {
  const text = number(value);
  return text === UNKNOWN ? text : `${text} ${unit}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(value, 1)) / 10)));
  return `${number(value / 2 ** (10 * power))} ${["bytes", "KiB", "MiB", "GiB", "TiB"][power]}`;
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
