// A canvas that is sharp on every screen, follows the page's width and colours, and is saved as a picture.
import { inkOf, mark, onPaper } from "./canvas.js";
import { el, nameSaves, saveRow } from "./dom.js";
import { download, slug } from "./save.js";

const FONT = "12px system-ui, sans-serif";
const LINE = 18;
// Pixels of a saved picture for each pixel of the page: 12 px letters are 3 mm high at 300 dots per inch.
const SCALE = 3;

// Draw a chart with its legend below, a line for each of the {name, colour, shape}, on white.
function paintPicture(context, width, tall, draw, legend) {
  return onPaper(() => {
    const { ink, paper } = inkOf();
    context.fillStyle = paper;
    context.fillRect(0, 0, width, tall + LINE * (legend.length + 1));
    context.font = FONT;
    draw(context, width, tall);
    Object.assign(context, { font: FONT, textAlign: "left", textBaseline: "middle", globalAlpha: 1, lineWidth: 1 });
    legend.forEach(({ name, colour, shape }, i) => {
      const y = tall + LINE * (i + 0.5);
      mark(context, shape, 13, y, 4.5);
      context.fillStyle = colour;
      context.fill();
      context.fillStyle = ink;
      context.fillText(name, 24, y);
    });
  });
}

function savePicture(width, tall, draw, { title, legend = [] }) {
  const height = tall + LINE * (legend.length ? legend.length + 0.5 : 0);
  const canvas = el("canvas", { width: Math.round(width * SCALE), height: Math.round(height * SCALE) });
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  paintPicture(context, width, tall, draw, legend);
  canvas.toBlob((blob) => download(`${slug(document.title, title)}.png`, blob), "image/png");
}

// A canvas in `box` that calls draw(context, width, height) now and whenever its size or the page's colours change.
// `picture()` gives the {title, legend} with which it is saved.
export function sheet(box, height, properties, draw, picture) {
  const canvas = el("canvas", properties);
  const saves = saveRow(picture().title, { PNG: () => savePicture(box.clientWidth, height(), draw, picture()) });
  box.append(canvas, saves);
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
    context.font = FONT;
    draw(context, width, tall);
    nameSaves(saves, picture().title);
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
