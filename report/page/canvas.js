// Drawing on a canvas that is sharp on every screen, follows the page's width and turns dark with the page.
import { el } from "./dom.js";

export function inkOf() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { ink: colour("--ink"), muted: colour("--muted"), line: colour("--line"), paper: colour("--paper") };
}

// A canvas in `box` that calls draw(context, width, height) now and whenever its size or the page's colours change.
export function sheet(box, height, properties, draw) {
  const canvas = el("canvas", properties);
  box.append(canvas);
  const redraw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const tall = height();
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${tall}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    draw(context, width, tall);
  };
  let lastWidth = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === lastWidth) return;
    lastWidth = box.clientWidth;
    redraw();
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  return { canvas, redraw };
}

// Eight shapes, so that series can be told apart without colours. Those after the first eight repeat.
export function mark(context, shape, x, y, r) {
  const corners = (points) => {
    context.moveTo(x + points[0][0] * r, y + points[0][1] * r);
    for (const [dx, dy] of points.slice(1)) context.lineTo(x + dx * r, y + dy * r);
    context.closePath();
  };
  context.beginPath();
  if (shape % 8 === 0) context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape % 8 === 1) context.rect(x - r * 0.9, y - r * 0.9, 1.8 * r, 1.8 * r);
  else {
    corners(
      [
        [[0, -1.15], [1.1, 0.9], [-1.1, 0.9]],
        [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
        [[0, 1.15], [1.1, -0.9], [-1.1, -0.9]],
        [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2],
          [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
        [[-1.2, 0], [0.9, -1.1], [0.9, 1.1]],
        [[1.2, 0], [-0.9, -1.1], [-0.9, 1.1]],
      ][(shape % 8) - 2],
    );
  }
}
