// Buttons of the static page that save its figures, its tables and all data.
import { allData } from "./data.js";
import { el, saveAs, saveTable } from "./dom.js";
import { download, slug } from "./save.js";

// A figure as it was drawn, with the colours of a light page, whose styles come first.
function saveFigure(figure) {
  const named = figure.id.replace("figure-", "").replaceAll("_", " ");
  const light = document.styleSheets[0].cssRules[0].style;
  const save = () => {
    const text = new XMLSerializer().serializeToString(figure.querySelector(".wide svg"));
    const plain = text.replace(/var\((--\w+)\)/g, (_, name) => light.getPropertyValue(name).trim());
    download(`${slug(document.title, named)}.svg`, plain, "image/svg+xml");
  };
  return saveAs("SVG", `figure ${named}`, save);
}

export function makeSavable() {
  for (const figure of document.querySelectorAll("figure[id^=figure-]")) (figure.closest("section").querySelector("details") ?? figure).append(saveFigure(figure));
  for (const table of document.querySelectorAll("figure.table table")) {
    table.closest("figure").append(saveTable(table.getAttribute("aria-label"), () => table));
  }
  const save = async () => download(`${slug(document.title)}.json`, JSON.stringify(await allData()), "application/json");
  document.getElementById("take-away")?.append(
    el("p", {}, el("button", { type: "button", class: "plain", onclick: save }, "Save all data of this page (JSON)")),
  );
}
