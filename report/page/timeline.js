// A cell's timeline: bars for its requests and curves of the scheduler and the device.
import { COLUMNS } from "./columns.js";
import { rowsOf } from "./data.js";
import { isWide } from "./scale.js";
import { curveStrip } from "./strips.js";
import { heading, plural } from "./words.js";

// No device has one of these colours; readers with common colour-vision deficiencies can tell them apart.
export const PHASES = { waiting: "#808080", prefill: "#9e14cc", decode: "#99990f", preempted: "#338033" };

export function timelineOf(unpacked) {
  const rows = (name) => (unpacked[name] ? rowsOf(unpacked[name].columns) : []);
  const [requests, steps, trace] = ["requests", "steps", "trace"].map(rows);
  const repeats = [...new Set([...requests, ...steps, ...trace].map((row) => row.repeat))].sort((a, b) => a - b);
  const chosen = ["requests", "steps", "trace"]
    .map((name, i) => ({ name: ["requests", "steps", "samples"][i], shown: [requests, steps, trace][i].length, of: unpacked[name]?.rows ?? 0 }))
    .filter(({ shown, of }) => shown < of);
  return { requests, steps, trace, repeats, chosen, share: requests.length / (unpacked.requests?.rows ?? 1) };
}

export function ofRepeat(timeline, repeat) {
  const only = (rows) => rows.filter((row) => row.repeat === repeat);
  const [requests, steps, trace] = [timeline.requests, timeline.steps, timeline.trace].map(only);
  requests.sort((a, b) => (a.scheduled_s ?? a.queued_s ?? 0) - (b.scheduled_s ?? b.queued_s ?? 0));
  const ends = [...requests.map((row) => row.last_token_s), ...steps.map((row) => row.time_s)].filter(Number.isFinite);
  return { requests, steps, trace, share: timeline.share, end: Math.max(1e-6, ...ends) };
}

// The phases of a request as [phase, from, to] in seconds.
export function phasesOf(request) {
  const phases = [
    ["waiting", request.queued_s, request.scheduled_s],
    ["prefill", request.scheduled_s, request.first_token_s],
    ["decode", request.first_token_s, request.last_token_s],
  ];
  return phases.filter(([, from, to]) => [from, to].every(Number.isFinite) && to > from);
}

function requestStrip(requests) {
  const row = Math.min(12, 320 / Math.max(1, requests.length));
  return {
    title: "Requests",
    height: row * requests.length,
    isEmpty: !requests.length,
    draw(context, { place }, top) {
      requests.forEach((request, i) => {
        const y = top + i * row;
        for (const [phase, from, to] of phasesOf(request)) {
          context.fillStyle = PHASES[phase];
          // Waiting is a thin bar, so that phases differ by more than their colour; prefill is full, decode is lower.
          const share = { waiting: 0.3, prefill: 0.95, decode: 0.65 }[phase];
          context.fillRect(place(from), y + (row * (1 - share)) / 2, Math.max(1, place(to) - place(from)), Math.max(1, row * share));
        }
        if (request.preemptions > 0) {
          context.fillStyle = PHASES.preempted;
          context.fillRect(place(request.last_token_s) + 2, y, 6, Math.max(1, row - 1));
        }
      });
    },
    legend: Object.entries(PHASES)
      .filter(([phase]) => phase !== "preempted" || requests.some((request) => request.preemptions > 0))
      .map(([name, colour]) => ({ name: name === "preempted" ? "was preempted" : name, colour })),
    at(time) {
      const counts = { waiting: 0, prefill: 0, decode: 0 };
      for (const request of requests) for (const [phase, from, to] of phasesOf(request)) if (from <= time && time < to) counts[phase] += 1;
      return Object.entries(counts).map(([phase, count]) => `${count} ${phase === "waiting" ? "waiting" : `in ${phase}`}`);
    },
  };
}

export function stripsOf(cell, part) {
  const { requests, steps, trace } = part;
  const times = steps.map((row) => row.time_s);
  const sampled = trace.map((row) => row.time_s);
  const of = (rows, name, factor = 1) => rows.map((row) => (row[name] === null || row[name] === undefined ? NaN : row[name] * factor));
  const blocks = cell.num_gpu_blocks;
  const curve = (name, column, colour, factor) => ({ name, colour, times, values: of(steps, column, factor) });
  const memory = trace.some((row) => Number.isFinite(row.memory_used_bytes)) ? "memory_used_bytes" : "process_memory_bytes";
  const used = of(trace, memory, COLUMNS[memory].factor);
  return [
    requestStrip(requests),
    curveStrip("Sequences", [curve("running", "running", "ink"), curve("waiting", "waiting", "muted")]),
    curveStrip(blocks ? "KV blocks in use" : heading("kv_cache_usage"), [curve("in use", "kv_cache_usage", "ink", blocks ?? COLUMNS.kv_cache_usage.factor)]),
    curveStrip("Tokens per step", [curve("prompt", "prompt_tokens", "ink"), curve("output", "generation_tokens", "muted"), ...(steps.some((row) => row.preempted > 0) ? [curve("preempted requests", "preempted", PHASES.preempted)] : [])]),
    // An engine that takes its memory at the start has nothing to show here.
    ...(isWide(used.filter(Number.isFinite), 1.01) ? [curveStrip(heading(memory), [{ name: COLUMNS[memory].label, colour: "ink", times: sampled, values: used }], COLUMNS[memory].unit)] : []),
    ...["power_w", "sm_clock_mhz"].map((name) => curveStrip(heading(name), [{ name: COLUMNS[name].label, colour: "ink", times: sampled, values: of(trace, name) }], COLUMNS[name].unit)),
  ];
}

export function chosenNote(timeline) {
  return timeline.chosen.map(({ name, shown, of }) => `${shown.toLocaleString("en")} of ${plural(of, name.replace(/s$/, ""))} are in the page, evenly chosen.`).join(" ");
}
