// A canvas that is sharp on every screen and follows the page's width and colours.
import { el } from "./dom.js";

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
