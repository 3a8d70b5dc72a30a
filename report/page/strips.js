// Strips above each other with one time axis, and a cursor that shows the values at its time.
import { el } from "./dom.js";
import { inkOf } from "./canvas.js";
import { scaleOf, ticksOf } from "./scale.js";
import { sheet } from "./sheet.js";
import { number } from "./words.js";

const LEFT = 64;
const RIGHT = 12;
const GAP = 26;
const TITLE = 16;
// Height of a strip of curves.
const HEIGHT = 76;

// The value at a time: a record is of the step that ended at its time, a sample of its time.
export function valueAt(times, values, time) {
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
    draw(context, place, top, ink, span) {
      const up = scaleOf(usable.flatMap((curve) => curve.values), false, top + HEIGHT, top);
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (const tick of ticksOf(up, 3)) {
        context.strokeStyle = ink.line;
        context.beginPath();
        context.moveTo(LEFT, up.place(tick));
        context.lineTo(span, up.place(tick));
        context.stroke();
        context.fillStyle = ink.muted;
        context.fillText(number(tick), LEFT - 6, up.place(tick));
      }
      for (const { times, values, colour } of usable) {
        context.strokeStyle = colour;
        context.lineWidth = 1.6;
        context.beginPath();
        let before = null;
        times.forEach((time, i) => {
          if (!Number.isFinite(values[i])) return;
          const x = place(time);
          const y = up.place(values[i]);
          if (before === null) context.moveTo(LEFT, y);
          else context.lineTo(before, y);
          context.lineTo(x, y);
          before = x;
        });
        context.stroke();
      }
    },
    legend: usable.map(({ name, colour }) => ({ name, colour })),
    at: (time) => usable.map((curve) => `${curve.name} ${number(valueAt(curve.times, curve.values, time))}${unit ? ` ${unit}` : ""}`),
  };
}

// The strips as an element; `end` is the last time in seconds, and `title` that of the saved picture.
export function stripsView(strips, end, label, title) {
  const shown = strips.filter((strip) => !strip.isEmpty);
  const box = el("div", { class: "chart" });
  const told = el("p", { class: "note cursor", "aria-live": "polite" }, "Move over the chart, or use the arrow keys, to read the values at a time.");
  const height = () => shown.reduce((sum, strip) => sum + strip.height + GAP, 0) + 44;
  let cursor = null;
  const properties = { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": label };
  const placeOf = (width) => (time) => LEFT + (time / end) * (width - LEFT - RIGHT);
  const { canvas, redraw } = sheet(box, height, properties, (context, width, tall) => {
    const ink = inkOf();
    const place = placeOf(width);
    let top = TITLE;
    for (const strip of shown) {
      context.textAlign = "left";
      context.textBaseline = "bottom";
      context.fillStyle = ink.ink;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(strip.title, LEFT, top - 1);
      let right = LEFT + context.measureText(strip.title).width + 12;
      context.font = "12px system-ui, sans-serif";
      for (const { name, colour } of strip.legend) {
        const wide = context.measureText(name).width + 20;
        if (right + wide > width) break;
        context.fillStyle = colour;
        context.fillRect(right, top - 11, 9, 9);
        context.fillStyle = ink.muted;
        context.fillText(name, right + 13, top - 1);
        right += wide + 8;
      }
      strip.draw(context, place, top, ink, width - RIGHT);
      top += strip.height + GAP;
    }
    const across = { low: 0, high: end, isLog: false };
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of ticksOf(across, Math.max(3, width / 110))) {
      context.fillStyle = ink.muted;
      context.fillText(number(tick), place(tick), tall - 48);
    }
    context.fillStyle = ink.ink;
    context.fillText("Time since the repeat began (s)", (LEFT + width - RIGHT) / 2, tall - 28);
    if (cursor !== null) {
      context.strokeStyle = ink.ink;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(place(cursor), 0);
      context.lineTo(place(cursor), tall - 54);
      context.stroke();
    }
  }, () => ({ title }));
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
