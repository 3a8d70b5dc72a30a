// Strips above each other with one time axis, and a cursor that shows the values at its time.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { drawAxis, drawSteps, scaleOf } from "./scale.js";
import { sheet } from "./sheet.js";
import { heading, number } from "./words.js";

const LEFT = 64;
const RIGHT = 12;
const GAP = 26;
const TITLE = 16;
// Height of a strip of curves.
const HEIGHT = 76;

// The value at a time: a record is of the step that ended at its time, a sample of its time.
function valueAt(times, values, time) {
  const next = times.findIndex((at) => at >= time);
  return next < 0 ? values.at(-1) : values[next];
}

// A strip of curves; `curves` are {name, colour, times, values}.
export function curveStrip(title, curves, unit = "") {
  const usable = curves.filter((curve) => curve.values.some((value) => Number.isFinite(value)));
  return {
    title,
    height: HEIGHT,
    isEmpty: !usable.length,
    draw(context, across, top, ink, right) {
      const up = scaleOf(usable.flatMap((curve) => curve.values), false, top + HEIGHT, top);
      drawAxis(context, ink, up, false, { left: LEFT, right, top, bottom: top + HEIGHT }, { most: 3 });
      for (const { times, values, colour } of usable) {
        context.strokeStyle = ink[colour] ?? colour;
        drawSteps(context, across, up, times, values, LEFT);
      }
    },
    legend: usable.map(({ name, colour }) => ({ name, colour })),
    at: (time) => usable.map((curve) => `${curve.name} ${number(valueAt(curve.times, curve.values, time))}${unit ? ` ${unit}` : ""}`),
  };
}

// The strips as an element; `end` is the last time in seconds.
export function stripsView(strips, end, label) {
  const shown = strips.filter((strip) => !strip.isEmpty);
  const box = el("div", { class: "chart" });
  const told = el("p", { class: "note cursor", "aria-live": "polite" }, "Move over the chart, or use the arrow keys, to read the values at a time.");
  const height = () => shown.reduce((sum, strip) => sum + strip.height + GAP, 0) + 44;
  let cursor = null;
  const properties = { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": label };
  const { canvas, redraw } = sheet(box, height, properties, (context, width, tall) => {
    const ink = inkOf();
    const right = width - RIGHT;
    const across = { low: 0, high: end, isLog: false, place: (time) => LEFT + (time / end) * (right - LEFT) };
    let top = TITLE;
    for (const strip of shown) {
      context.textAlign = "left";
      context.textBaseline = "bottom";
      context.fillStyle = ink.ink;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(strip.title, LEFT, top - 1);
      let x = LEFT + context.measureText(strip.title).width + 12;
      context.font = "12px system-ui, sans-serif";
      for (const { name, colour } of strip.legend) {
        const wide = context.measureText(name).width + 20;
        if (x + wide > width) break;
        context.fillStyle = ink[colour] ?? colour;
        context.fillRect(x, top - 11, 9, 9);
        context.fillStyle = ink.muted;
        context.fillText(name, x + 13, top - 1);
        x += wide + 8;
      }
      strip.draw(context, across, top, ink, right);
      top += strip.height + GAP;
    }
    const bottom = tall - 54;
    drawAxis(context, ink, across, true, { left: LEFT, right, top: bottom, bottom }, { label: heading("time_s") });
    if (cursor !== null) {
      context.strokeStyle = ink.ink;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(across.place(cursor), 0);
      context.lineTo(across.place(cursor), bottom);
      context.stroke();
    }
  });
  const move = (time) => {
    cursor = Math.min(end, Math.max(0, time));
    told.textContent = `At ${number(cursor)} s: ${shown.flatMap((strip) => strip.at(cursor)).join("; ")}.`;
    redraw();
  };
  canvas.addEventListener("pointermove", (event) => {
    move(((event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT)) * end);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 0.01, ArrowLeft: -0.01, PageDown: 0.1, PageUp: -0.1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    move((cursor ?? 0) + step * end);
    event.preventDefault();
  });
  return el("div", {}, box, told);
}
