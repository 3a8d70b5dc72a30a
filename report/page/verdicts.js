// Whether a published throughput is possible, as analyse/claims/audit.py decides it; a test compares the two.
import { kv_cache_bytes, request_flops, request_time_min_s, total_tokens_per_s_ceiling } from "./formulas.js";
import { number } from "./words.js";

// Which of the names are those of a GPU, a throughput and sequences, by the patterns of the catalogue.
export function findColumns(names, patterns) {
  const isLike = (kind, name) => new RegExp(`^(?:${patterns[kind]})$`, "i").test(name.trim());
  const like = (kind) => names.filter((name) => isLike(kind, name));
  const gpus = like("gpu");
  if (!gpus.length) throw new Error(`No column names the GPU (gpu, device). Columns: ${names.join(", ") || "none"}.`);
  const rates = like("throughput").filter((name) => !isLike("not_tokens", name));
  if (rates.length !== 1) {
    throw new Error(rates.length
      ? `${rates.length} columns look like a throughput (${rates.join(", ")}): keep one of them.`
      : `No column looks like a throughput (tokens_per_s, throughput, tok/s). Columns: ${names.join(", ")}.`);
  }
  return { gpu: gpus[0], throughput: rates[0], sequences: like("sequences")[0] ?? null, countsOutputOnly: isLike("output", rates[0]) };
}

function words(name) {
  const found = name.trim().toLowerCase().replace(/^1 ?x ?/, "").split(/[\s_-]+/);
  return new Set(found.filter((word) => !["nvidia", "amd", ""].includes(word)));
}

const within = (few, many) => [...few].every((word) => many.has(word));

// Every device that a name may mean: "A100 PCIe" is a 40 GB or an 80 GB card.
export function resolve(name, devices) {
  const wanted = words(name);
  return devices.filter((device) => {
    const names = device.names.map(words);
    return names.some((other) => within(other, wanted)) && within(wanted, new Set(names.flatMap((other) => [...other])));
  });
}

// A number, or the lower end of a range, without its unit; NaN if it is a share or a multiple.
function readNumber(text) {
  const found = /^\s*[~≈<>≤≥]?\s*((?:\d{1,3}(?:[,'_\s]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?![\d,.]|\s*(?:%|[x×]\b))\s*(k(?:\b|tok))?/i.exec(text);
  return found ? Number(found[1].replace(/[,'_\s]/g, "")) * (found[2] ? 1000 : 1) : NaN;
}

// The rate of a device for the type of a model; for quantized weights, which may run in a smaller type, its highest.
export function flopRate(model, device, quantization) {
  return (quantization || model.quantization ? device.highest_flop_per_s : device.flop_per_s[model.dtype]) || Infinity;
}

// The highest possible rates of a device with at most `most` live sequences; null without data-sheet rates.
export function ceiling(model, device, most, workload, { utilization = 1, kv = "auto", quantization = "" } = {}) {
  const bandwidth = device.memory_bandwidth_bytes_per_s;
  if (bandwidth === null || device.memory_bytes === null || device.highest_flop_per_s === null) return null;
  const { weight_bytes: weights, decode_weight_bytes: read } = model.weights[quantization];
  const memory = device.memory_bytes * utilization;
  const perToken = model.kv_bytes_per_token[kv];
  const { prompt, output } = workload;
  const fitting = kv_cache_bytes(memory, 1, weights) / (perToken * (prompt + (output - 1) / 2));
  if (fitting < 1) {
    return { device: device.name, total: 0, output: 0, limit: "memory size", because: `${number(weights / 1e9)} GB of weights and a request do not fit in ${number(memory / 1e9)} GB` };
  }
  const sequences = Math.min(most, fitting);
  const flop_per_s = flopRate(model, device, quantization);
  const flops = request_flops(model.layer_parameters, model.lm_head_parameters, model.attention_width, prompt, output);
  const time = request_time_min_s(sequences, prompt, output, read, perToken, flops, bandwidth, flop_per_s);
  const arithmetic = flops / flop_per_s >= time;
  return {
    device: device.name,
    total: total_tokens_per_s_ceiling(prompt, output, time),
    output: output / time,
    limit: arithmetic ? "arithmetic" : "memory bandwidth",
    because: arithmetic
      ? `${number(flops / 1e12)} TFLOP per request at ${number(flop_per_s / 1e12)} TFLOP/s`
      : `${number(sequences)} live sequences${sequences === fitting ? ", as many as the KV cache holds" : ""}: a step reads ${number(read / 1e9)} GB of weights at ${number(bandwidth / 1e12)} TB/s`,
  };
}

// The rows, each with {verdict, ceiling, times, device, limit, reason}; `workload` is {prompt, output} tokens.
export function audit(rows, model, catalog, workload, settings = {}) {
  const columns = findColumns(Object.keys(rows[0] ?? {}), catalog.columns);
  const unknown = (reason) => ({ verdict: "unknown", ceiling: null, times: null, device: null, limit: null, reason });
  return rows.map((row) => {
    const stated = columns.sequences === null ? "" : String(row[columns.sequences]).trim();
    const sequences = stated === "" ? (settings.sequences ?? 256) : readNumber(stated);
    if (!(sequences >= 1)) return unknown(`${columns.sequences} is "${stated}", not a number of sequences`);
    const candidates = resolve(String(row[columns.gpu]), catalog.devices);
    if (!candidates.length) return unknown(`unknown GPU "${row[columns.gpu]}"`);
    const ceilings = candidates.map((device) => ceiling(model, device, sequences, workload, settings)).filter(Boolean);
    if (!ceilings.length) return unknown(`no data sheet gives the rates of ${row[columns.gpu]}`);
    const highest = ceilings.reduce((a, b) => (b.total > a.total ? b : a));
    const limit = columns.countsOutputOnly ? highest.output : highest.total;
    const known = { ceiling: limit, device: highest.device, limit: highest.limit };
    const rate = readNumber(row[columns.throughput]);
    if (!(rate > 0)) return { ...unknown(`no number in ${columns.throughput}`), ...known };
    const times = limit ? rate / limit : Infinity;
    const counted = columns.countsOutputOnly ? "output tokens" : "prompt and output tokens";
    const assumed = stated === "" ? `; the number of sequences is not stated: ${sequences} assumed` : "";
    return { ...known, verdict: times > 1 ? "impossible" : "possible", times, reason: `${number(times)} times the ceiling for ${counted}; ${highest.because}${assumed}` };
  });
}

// A pasted table as rows: CSV, TSV, or a Markdown table.
export function parseTable(text) {
  const lines = text.trim().split(/\r?\n/).filter((line) => line.trim() && !/^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(line));
  if (lines.length < 2) throw new Error("Paste a table with a line of column names and at least one row.");
  const isMarkdown = lines[0].trim().startsWith("|");
  const separator = isMarkdown ? "|" : lines[0].includes("\t") ? "\t" : ",";
  const cut = (line) => {
    if (isMarkdown) return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((part) => part.trim());
    const parts = [];
    let part = "";
    let quoted = false;
    for (const sign of line) {
      if (sign === '"') quoted = !quoted;
      else if (sign === separator && !quoted) {
        parts.push(part.trim());
        part = "";
      } else part += sign;
    }
    return [...parts, part.trim()];
  };
  const names = cut(lines[0]);
  return lines.slice(1).map((line) => {
    const parts = cut(line);
    return Object.fromEntries(names.map((name, i) => [name, parts[i] ?? ""]));
  });
}
