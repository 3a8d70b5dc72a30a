// The distribution of a latency over the requests of a repeat: the share of requests that took at most this long.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { scaleOf, ticksOf } from "./scale.js";
import { sheet } from "./sheet.js";
import { number } from "./words.js";

export const LATENCIES = [
  ["Time to first token (ms)", (r) => (r.first_token_s - r.queued_s) * 1000],
  ["Time per output token (ms)", (r) => (r.output_tokens > 1 ? ((r.last_token_s - r.first_token_s) / (r.output_tokens - 1)) * 1000 : NaN)],
  ["End-to-end latency (ms)", (r) => (r.last_token_s - r.queued_s) * 1000],
];

function shares(title, curves, colours) {
  const box = el("div", { class: "chart" });
  const all = curves.flat();
  const sorted = [...all].sort((a, b) => a - b);
  const at = (share) => number(sorted[Math.ceil(share * sorted.length) - 1]);
  const label = `${title}: half of the requests took at most ${at(0.5)}, 90 % at most ${at(0.9)}, 99 % at most ${at(0.99)}.`;
  sheet(box, () => 150, { role: "img", "aria-label": label }, (context, width, tall) => {
    const ink = inkOf();
    const across = scaleOf(all, false, 46, width - 14);
    const up = { place: (share) => tall - 32 - share * (tall - 46) };
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 0.9, 1]) {
      context.strokeStyle = ink.line;
      context.beginPath();
      context.moveTo(46, up.place(share));
      context.lineTo(width - 14, up.place(share));
      context.stroke();
      context.fillStyle = ink.muted;
      context.textAlign = "right";
      context.fillText(`${100 * share} %`, 42, up.place(share));
    }
    context.textAlign = "center";
    for (const tick of ticksOf(across, 4)) context.fillText(number(tick), across.place(tick), tall - 20);
    context.fillStyle = ink.ink;
    context.fillText(title, width / 2, tall - 6, width - 8);
    curves.forEach((values, i) => {
      context.strokeStyle = colours[i % colours.length];
      context.lineWidth = 1.6;
      context.beginPath();
      context.moveTo(46, up.place(0));
      values.forEach((value, j) => {
        context.lineTo(across.place(value), up.place(j / values.length));
        context.lineTo(across.place(value), up.place((j + 1) / values.length));
      });
      context.stroke();
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
