// The distribution of a latency over the requests of a repeat: the share of requests that took at most this long.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { drawAxis, drawSteps, scaleOf } from "./scale.js";
import { sheet } from "./sheet.js";

export const LATENCIES = [
  ["Time to first token (ms)", (r) => (r.first_token_s - r.queued_s) * 1000],
  ["Time per output token (ms)", (r) => (r.output_tokens > 1 ? ((r.last_token_s - r.first_token_s) / (r.output_tokens - 1)) * 1000 : NaN)],
  ["End-to-end latency (ms)", (r) => (r.last_token_s - r.queued_s) * 1000],
];

function shares(title, curves, colours) {
  const box = el("div", { class: "chart" });
  const all = curves.flat();
  sheet(box, () => 160, { role: "img", "aria-label": `${title}: the share of the requests that took at most this long` }, (context, width, tall) => {
    const ink = inkOf();
    const area = { left: 46, right: width - 14, top: 14, bottom: tall - 44 };
    const across = scaleOf(all, false, area.left, area.right);
    const up = { low: 0, high: 1, place: (share) => area.bottom - share * (area.bottom - area.top) };
    drawAxis(context, ink, across, true, area, { label: title });
    drawAxis(context, ink, up, false, area, { ticks: [0, 0.5, 0.9], text: (share) => `${100 * share} %` });
    curves.forEach((values, i) => {
      if (!values.length) return;
      context.strokeStyle = colours[i % colours.length];
      drawSteps(context, across, up, [...values, values.at(-1)], [...values.keys(), values.length].map((below) => below / values.length), area.left);
    });
  }, () => ({ title }));
  return box;
}

export function distributions(timeline, colours) {
  const views = LATENCIES.map(([title, of]) => {
    const curves = timeline.repeats.map((repeat) =>
      timeline.requests.filter((r) => r.repeat === repeat).map(of).filter(Number.isFinite).sort((a, b) => a - b),
    );
    return curves.some((values) => values.length) ? shares(title, curves, colours) : null;
  });
  return views.some(Boolean) ? el("div", { class: "three" }, views) : null;
}
