// Buttons of the static page that save its figures, its tables and all data.
import { allData } from "./data.js";
import { el, saveRow, saveTable } from "./dom.js";
import { download, slug } from "./save.js";
import { savePng } from "./sheet.js";

// A figure of the page as it was drawn: with plain colours instead of those that follow a dark page.
function plainSvg(address) {
  const bytes = Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (sign) => sign.charCodeAt(0));
  const text = new TextDecoder().decode(bytes);
  const following = /<style>:root\{([^}]*)\}@media\(prefers-color-scheme:dark\)\{:root\{[^}]*\}\}<\/style>/.exec(text);
  const colours = [...following[1].matchAll(/--(\w+):([^;]+);/g)];
  return colours.reduce((plain, [, name, colour]) => plain.replaceAll(`var(--${name})`, colour), text.replace(following[0], ""));
}

function saveFigure(figure) {
  const picture = figure.querySelector("img");
  const name = slug(document.title, figure.id.replace("figure-", "").replaceAll("_", " "));
  const [width, height] = [Number(picture.getAttribute("width")), Number(picture.getAttribute("height"))];
  const png = async () => {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(plainSvg(picture.src))}`;
    await image.decode();
    savePng(`${name}.png`, width, height, (context) => {
      context.fillStyle = "#ffffff";
      context.fillRect(0, 0, width, height);
      context.drawImage(image, 0, 0, width, height);
    });
  };
  return saveRow(`figure ${figure.id.replace("figure-", "").replaceAll("_", " ")}`, { SVG: () => download(`${name}.svg`, plainSvg(picture.src), "image/svg+xml"), PNG: png });
}

export function makeSavable() {
  for (const figure of document.querySelectorAll("figure[id^=figure-]")) figure.append(saveFigure(figure));
  for (const table of document.querySelectorAll("figure.table table")) {
    table.closest("figure").append(saveTable(table.getAttribute("aria-label"), () => table));
  }
  const save = async () => download(`${slug(document.title)}.json`, JSON.stringify(await allData()), "application/json");
  document.getElementById("take-away")?.append(
    el("p", {}, el("button", { type: "button", class: "plain", onclick: save }, "Save all data of this page (JSON)")),
  );
}
