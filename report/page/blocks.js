// The block map: how many KV blocks each running request holds at a moment. Engines do not report this. It is computed
// from the requests' times and lengths for a scheduler that allocates a block when the one before it is full.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { keysOf } from "./chart.js";
import { sheet } from "./sheet.js";
import { number, plural } from "./words.js";

const SIDE = 12;
const MOST_DRAWN = 60;
const KINDS = { full: "full", partly: "last block, partly filled", shared: "shared prefix, found in the cache" };
// As those of phases: no device has them.
const COLOURS = { full: "#538074", partly: "#99990f", shared: "#9e14cc" };

// A block as a square: full, filled in part, or shared, which has a line across.
function square(context, kind, x, y, share, line) {
  context.fillStyle = COLOURS[kind];
  context.strokeStyle = COLOURS[kind];
  context.fillRect(x, y, SIDE * share, SIDE);
  context.strokeRect(x + 0.5, y + 0.5, SIDE - 1, SIDE - 1);
  if (kind !== "shared") return;
  context.strokeStyle = line;
  context.beginPath();
  context.moveTo(x + 2, y + SIDE - 2);
  context.lineTo(x + SIDE - 2, y + 2);
  context.stroke();
}

// Tokens of a request in the cache at a time: the prompt while it is read, then one more in each step, because a token
// enters the cache in the step that makes the next one.
function tokensHeld(request, time, stepsUntil) {
  const start = request.scheduled_s ?? request.queued_s;
  if (!(start <= time && time < request.last_token_s)) return 0;
  if (time < request.first_token_s) return request.prompt_tokens;
  const steps = request.output_tokens - 1;
  const [from, now, to] = [request.first_token_s, time, request.last_token_s].map(stepsUntil);
  const done = Math.floor((steps * (now - from)) / (to - from));
  return request.prompt_tokens + Math.min(steps, done + 1);
}

// Blocks of each running request: {request, full, partly (share of the last block that is filled), shared}. Without the
// number of steps until a time, they are taken to last equally long.
export function blocksAt(requests, time, blockSize, stepsUntil = (of) => of) {
  return requests
    .map((request, i) => ({ name: i + 1, request, tokens: tokensHeld(request, time, stepsUntil) }))
    .filter(({ tokens }) => tokens > 0)
    .map(({ name, request, tokens }) => ({
      name,
      tokens,
      full: Math.floor(tokens / blockSize),
      partly: (tokens % blockSize) / blockSize,
      shared: Math.min(Math.floor((request.cached_prompt_tokens ?? 0) / blockSize), Math.floor(tokens / blockSize)),
    }));
}

// Different blocks in use; shared ones count once, as if all requests shared the same prefix.
export function blocksInUse(rows) {
  const own = rows.reduce((sum, row) => sum + row.full + (row.partly > 0 ? 1 : 0) - row.shared, 0);
  const borrowed = Math.max(0, ...rows.map((row) => row.shared));
  // The request that filled the shared blocks holds them as its own.
  const ownerRuns = rows.some((row) => row.shared < borrowed && row.full >= borrowed);
  return own + (ownerRuns ? 0 : borrowed);
}

export function blockMap(cell, part) {
  const blockSize = cell.block_size_effective ?? cell.knob_block_size ?? cell.knob_page_size;
  if (!blockSize || !part.requests.length) return null;
  const slider = el("input", { type: "range", min: 0, max: 1000, value: 300, "aria-label": "Moment of the repeat" });
  const told = el("p", { class: "note", role: "status" });
  const box = el("div", { class: "chart" });
  const time = () => (Number(slider.value) / 1000) * part.end;
  const times = [0, ...part.steps.map((step) => step.time_s), part.end];
  const stepsUntil = (of) => {
    const next = times.findIndex((at) => at > of);
    return next < 0 ? times.length - 1 : next - 1 + (of - times[next - 1]) / (times[next] - times[next - 1]);
  };
  const rowsNow = () => blocksAt(part.requests, time(), blockSize, stepsUntil);
  const kinds = Object.keys(KINDS).filter((kind) => kind !== "shared" || part.requests.some((r) => r.cached_prompt_tokens > 0));
  const legend = kinds.map((kind) => ({ name: KINDS[kind], colour: COLOURS[kind], shape: 1 }));
  const perLine = () => Math.max(1, Math.floor((box.clientWidth - 48) / (SIDE + 2)));
  const linesOf = (row) => Math.ceil((row.full + (row.partly > 0 ? 1 : 0)) / perLine());
  const height = () => 8 + rowsNow().slice(0, MOST_DRAWN).reduce((sum, row) => sum + linesOf(row) * (SIDE + 2) + 4, SIDE);
  const { redraw } = sheet(box, height, { role: "img", "aria-label": "Blocks that each running request holds; the line above says how many" }, (context) => {
    const ink = inkOf();
    const line = perLine();
    let top = 4;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const row of rowsNow().slice(0, MOST_DRAWN)) {
      context.fillStyle = ink.muted;
      context.fillText(String(row.name), 34, top + SIDE / 2);
      for (let i = 0; i < row.full + (row.partly > 0 ? 1 : 0); i += 1) {
        const x = 44 + (i % line) * (SIDE + 2);
        const y = top + Math.floor(i / line) * (SIDE + 2);
        const kind = i < row.shared ? "shared" : i < row.full ? "full" : "partly";
        square(context, kind, x, y, i < row.full ? 1 : row.partly, ink.paper);
      }
      top += linesOf(row) * (SIDE + 2) + 4;
    }
  });
  const update = () => {
    const rows = rowsNow();
    const used = blocksInUse(rows);
    const tokens = rows.reduce((sum, row) => sum + row.tokens, 0);
    const record = part.steps.find((step) => step.time_s >= time());
    const usage = record?.kv_cache_usage * cell.num_gpu_blocks;
    const engine = Number.isFinite(usage) ? ` The engine reports ${plural(Math.round(usage), "block")} in use at ${number(record.time_s)} s.` : "";
    const sample = part.share < 1 ? `, of a sample of ${number(100 * part.share)} % of the requests` : "";
    const hidden = rows.length > MOST_DRAWN ? ` ${MOST_DRAWN} of the requests are drawn.` : "";
    told.textContent = `Computed, at ${number(time())} s${sample}: ${plural(rows.length, "running request")} with ${plural(tokens, "token")} in ${plural(used, "block")} of ${plural(blockSize, "token")}.${engine}${hidden}`;
    redraw();
  };
  slider.addEventListener("input", update);
  update();
  return el(
    "div",
    {},
    el("p", { class: "note" }, "Computed from the times and lengths of the requests: engines do not report which block a request holds. Each row is a request, each square a block. Numbers count requests in the order in which they were scheduled."),
    keysOf(legend),
    el("label", { class: "choice" }, el("span", {}, "Moment of the repeat"), slider),
    told,
    box,
  );
}
