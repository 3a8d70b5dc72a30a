// A chart of points with whiskers and lines, for mouse and keyboard.
import { el } from "./dom.js";
import { inkOf, mark } from "./canvas.js";
import { dodge } from "./dodge.js";
import { drawAxis, scaleOf } from "./scale.js";
import { sheet } from "./sheet.js";

const NEAR_PX = 24;
const MOST_WITH_REPEATS = 200;

// `pick(point)` is called when a point is chosen; `describe(point)` gives its lines of text.
export class Chart {
  constructor(box, { pick, describe }) {
    Object.assign(this, { describe, pick, points: [], at: -1 });
    this.tip = el("div", { class: "tip", hidden: true });
    this.ring = el("div", { class: "ring", hidden: true });
    this.said = el("p", { class: "said", "aria-live": "polite" });
    const properties = { tabindex: "0", role: "application", "aria-roledescription": "chart" };
    const height = () => (box.clientWidth < 600 ? 320 : 420);
    const { canvas, redraw } = sheet(box, height, properties, (...drawing) => this.draw(...drawing));
    this.canvas = canvas;
    this.redraw = redraw;
    box.append(this.ring, this.tip, this.said);
    canvas.addEventListener("pointermove", (event) => this.select(this.nearest(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => this.select(-1));
    canvas.addEventListener("click", (event) => {
      const found = this.nearest(event.offsetX, event.offsetY);
      if (found >= 0) this.pick(this.points[found]);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.select(-1));
  }

  // Points are {x, y, xLow, xHigh, yLow, yHigh, series, hollow}; series are {colour, shape}; lines are lists of points.
  show({ points, lines, series, x, y, label, isFront = false }) {
    Object.assign(this, { lines, series, x, y, isFront });
    this.points = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
    this.select(-1);
    this.canvas.setAttribute("aria-label", `${label} Arrow keys move from point to point, Enter opens one.`);
    this.redraw();
  }

  draw(context, width, height) {
    const ink = inkOf();
    const points = this.points;
    const area = { left: 62, right: width - 16, top: 28, bottom: height - 44 };
    const across = scaleOf(points.flatMap((p) => [p.x, p.xLow ?? p.x, p.xHigh ?? p.x, this.x.limit ?? p.x]), this.x?.isLog, area.left, area.right);
    const up = scaleOf(points.flatMap((p) => [p.y, p.yLow ?? p.y, p.yHigh ?? p.y]), this.y?.isLog, area.bottom, area.top);
    if (!points.length) {
      context.fillStyle = ink.muted;
      context.textAlign = "center";
      context.fillText("No cell with these filters has a value of this measure.", width / 2, height / 2, width - 20);
      return;
    }
    drawAxis(context, ink, across, true, area, this.x);
    drawAxis(context, ink, up, false, area, this.y);
    const shown = (p) => across.shows(p.x) && up.shows(p.y);
    for (const p of points) Object.assign(p, shown(p) ? { px: across.place(p.x), py: up.place(p.y) } : { px: NaN, py: NaN });
    const radius = points.length > 2000 ? 2.5 : 4.5;
    dodge(points, area.left, area.right, radius);
    this.showRing();
    context.lineWidth = 1.2;
    context.globalAlpha = 0.55;
    for (const line of this.lines) {
      context.strokeStyle = this.isFront ? ink.ink : ink[this.series[line[0].series].colour];
      context.beginPath();
      for (const p of line.filter(shown)) context.lineTo(p.px, p.py);
      context.stroke();
    }
    context.globalAlpha = points.length > 500 ? 0.5 : 1;
    for (const p of points) this.drawPoint(context, p, across, up, radius, ink);
    context.fillStyle = ink.ink;
    if (this.x.limit) context.fillRect(across.place(this.x.limit) - 1, area.top, 2, area.bottom - area.top);
    context.globalAlpha = 1;
  }

  // A ring around the chosen point, as a separate element: drawing thousands of points at each move of the mouse would
  // take too long.
  showRing() {
    const point = this.points[this.at];
    this.ring.hidden = !point || !Number.isFinite(point.px);
    if (this.ring.hidden) return;
    this.ring.style.left = `${point.px}px`;
    this.ring.style.top = `${point.py}px`;
  }

  drawPoint(context, p, across, up, radius, ink) {
    if (!Number.isFinite(p.px) || !Number.isFinite(p.py)) return;
    const { colour, shape } = this.series[p.series];
    context.strokeStyle = ink[colour];
    context.lineWidth = 1.2;
    context.beginPath();
    if (p.yLow !== p.yHigh && up.shows(p.yLow)) {
      context.moveTo(p.px, up.place(p.yLow));
      context.lineTo(p.px, up.place(p.yHigh));
    }
    if (p.xLow !== p.xHigh && p.xLow !== undefined && across.shows(p.xLow)) {
      context.moveTo(across.place(p.xLow), p.py);
      context.lineTo(across.place(p.xHigh), p.py);
    }
    for (const value of this.points.length <= MOST_WITH_REPEATS ? p.repeats() : []) if (up.shows(value)) context.rect(p.px - 8, up.place(value), 16, 0.1);
    context.stroke();
    mark(context, shape, p.px, p.py, radius);
    context.fillStyle = p.hollow ? ink.paper : ink[colour];
    context.fill();
    context.stroke();
  }

  nearest(x, y) {
    let best = -1;
    let least = NEAR_PX ** 2;
    this.points.forEach((p, i) => {
      const distance = (p.px - x) ** 2 + (p.py - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  select(i) {
    if (i === this.at) return;
    this.at = i;
    this.showRing();
    this.tip.hidden = i < 0;
    if (i >= 0) {
      const point = this.points[i];
      this.tip.replaceChildren(...this.describe(point).map((line) => el("div", {}, line)));
      const wide = this.canvas.clientWidth;
      this.tip.style.left = `${Math.max(0, Math.min(point.px + 12, wide - this.tip.offsetWidth))}px`;
      this.tip.style.top = `${point.py + 14}px`;
      if (document.activeElement === this.canvas) this.said.textContent = this.describe(point).join(". ");
    }
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    const last = this.points.length - 1;
    if (last < 0) return;
    if (event.key in steps) this.select(Math.min(last, Math.max(0, this.at + steps[event.key])));
    else if (event.key === "Home") this.select(0);
    else if (event.key === "End") this.select(last);
    else if (event.key === "Enter" && this.at >= 0) this.pick(this.points[this.at]);
    else if (event.key === "Escape" && this.at >= 0) this.select(-1);
    else return;
    event.preventDefault();
  }
}

function swatch({ colour, shape }) {
  const canvas = el("canvas", { width: 28, height: 28, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  mark(context, shape, 14, 14, 9);
  context.fillStyle = inkOf()[colour] ?? colour;
  context.fill();
  return canvas;
}

// A legend of names.
export function keysOf(legend) {
  return el("p", { class: "legend" }, legend.map((one) => el("span", { class: "key" }, swatch(one), one.name)));
}
