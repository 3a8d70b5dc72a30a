// A canvas that is sharp on every screen, follows the page's width and colours, and is saved as a picture.
import { inkOf, mark, onPaper } from "./canvas.js";
import { el, nameSaves, saveRow } from "./dom.js";
import { download, slug } from "./save.js";
import { SvgContext } from "./svg.js";

const FONT = "12px system-ui, sans-serif";
const LINE = 18;
// Pixels of a saved picture for each pixel of the page: 12 px letters are 3 mm high at 300 dots per inch.
const SCALE = 3;

// Entries of a legend, {name, colour, shape}, in rows that are as wide as the picture.
function placed(context, entries, width) {
  let [x, y] = [8, 0];
  return entries.map((entry) => {
    const wide = 16 + context.measureText(entry.name).width;
    if (x > 8 && x + wide > width) [x, y] = [8, y + LINE];
    const at = { ...entry, x, y };
    x += wide + 16;
    return at;
  });
}

// The picture of a chart with its legend below, on white: {height, paint(context)}.
function pictureOf(width, tall, draw, legend) {
  const measuring = new SvgContext();
  measuring.font = FONT;
  const entries = placed(measuring, legend, width);
  const height = tall + (entries.length ? entries.at(-1).y + LINE + 6 : 0);
  const paint = (context) =>
    onPaper(() => {
      const { ink, paper } = inkOf();
      context.fillStyle = paper;
      context.fillRect(0, 0, width, height);
      context.font = FONT;
      draw(context, width, tall);
      Object.assign(context, { font: FONT, textAlign: "left", textBaseline: "middle", globalAlpha: 1, lineWidth: 1 });
      for (const { name, colour, shape, x, y } of entries) {
        mark(context, shape, x + 5, tall + y + LINE / 2, 4.5);
        context.fillStyle = colour;
        context.fill();
        context.fillStyle = ink;
        context.fillText(name, x + 16, tall + y + LINE / 2);
      }
    });
  return { height, paint };
}

function savePicture(kind, width, tall, draw, { title, legend = [] }) {
  const name = `${slug(document.title, title)}.${kind}`;
  const { height, paint } = pictureOf(width, tall, draw, legend);
  if (kind === "svg") {
    const context = new SvgContext();
    paint(context);
    download(name, context.text(width, height, title), "image/svg+xml");
    return;
  }
  savePng(name, width, height, paint);
}

// Save what paint(context) draws as PNG.
export function savePng(name, width, height, paint) {
  const canvas = el("canvas", { width: Math.round(width * SCALE), height: Math.round(height * SCALE) });
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  paint(context);
  canvas.toBlob((blob) => download(name, blob), "image/png");
}

// A canvas in `box` that calls draw(context, width, height) now and whenever its size or the page's colours change.
// `picture()` gives the {title, legend} with which it is saved.
export function sheet(box, height, properties, draw, picture) {
  const canvas = el("canvas", properties);
  const save = (kind) => () => savePicture(kind, box.clientWidth, height(), draw, picture());
  const saves = saveRow(picture().title, { SVG: save("svg"), PNG: save("png") });
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
