// The distribution of a latency over the requests of a repeat: the share of requests that took at most this long.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { keysOf } from "./chart.js";
import { drawAxis, drawSteps, scaleOf } from "./scale.js";
import { COLUMNS } from "./columns.js";
import { sheet } from "./sheet.js";
import { heading } from "./words.js";

// Column -> a request's latency in seconds.
export const LATENCIES = {
  ttft_s: (r) => r.first_token_s - r.queued_s,
  tpot_s: (r) => (r.output_tokens > 1 ? (r.last_token_s - r.first_token_s) / (r.output_tokens - 1) : NaN),
  e2e_s: (r) => r.last_token_s - r.queued_s,
};

function shares(title, curves, legend) {
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
      context.strokeStyle = legend[i].colour;
      drawSteps(context, across, up, [...values, values.at(-1)], [...values.keys(), values.length].map((below) => below / values.length), area.left);
    });
  }, () => ({ title, legend }));
  return box;
}

// A chart per latency below a legend of the repeats; empty if no latency is known.
export function distributions(timeline, colours) {
  const legend = timeline.repeats.map((repeat, i) => ({ name: `repeat ${repeat}`, colour: colours[i % colours.length], shape: 1 }));
  const views = Object.entries(LATENCIES).map(([column, of]) => {
    const curves = timeline.repeats.map((repeat) =>
      timeline.requests.filter((r) => r.repeat === repeat).map((r) => of(r) * COLUMNS[column].factor).filter(Number.isFinite).sort((a, b) => a - b),
    );
    return curves.some((values) => values.length) ? shares(heading(column), curves, legend) : null;
  });
  return views.some(Boolean) ? [keysOf(legend), el("div", { class: "three" }, views)] : [];
}
