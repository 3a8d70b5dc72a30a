// What the script adds: views beside the report, each drawn when it is opened. The report is complete without it.
import { current, parseAddress } from "./address.js";
import { store } from "./data.js";
import { el } from "./dom.js";
import { openCell } from "./drawer.js";
import { showExplore } from "./explore.js";
import { showLimits } from "./limits.js";
import { joinMarks, makeSortable, reveal } from "./static.js";
import { makeSavable } from "./take_away.js";

const VIEWS = [
  { id: "report", name: "Report" },
  { id: "explore", name: "Explore", show: showExplore },
  { id: "limits", name: "Your limits", show: showLimits },
];
const tabs = new Map();
const panels = new Map();
const list = el("div", { role: "tablist", "aria-label": "Views", class: "tabs" });

async function open(id) {
  const view = VIEWS.find((candidate) => candidate.id === id) ?? VIEWS[0];
  for (const { id: other } of VIEWS) {
    tabs.get(other).setAttribute("aria-selected", String(other === view.id));
    tabs.get(other).tabIndex = other === view.id ? 0 : -1;
    panels.get(other).hidden = other !== view.id;
  }
  // In the report the tabs stand below the fastest settings, elsewhere at the top.
  if (view.show) document.querySelector("main").prepend(list);
  else document.getElementById("views").append(list);
  if (!view.show) return;
  const panel = panels.get(view.id);
  panel.replaceChildren(el("p", { class: "note" }, "Unpacking the data of the page ..."));
  try {
    view.show(panel, await store());
  } catch (error) {
    panel.replaceChildren(el("p", { class: "absent" }, `This view cannot be drawn: ${error.message}`));
    throw error;
  }
}

// The parameters of the views that the reader left, to show a view again as it was.
const left = new Map();

function choose(id) {
  const focused = document.activeElement;
  const here = current();
  here.delete("cell");
  if (here.get("view")) left.set(here.get("view"), here);
  const address = id === "report" ? location.pathname + location.search : `#${left.get(id) ?? new URLSearchParams({ view: id })}`;
  history.pushState(null, "", address);
  open(id);
  focused?.focus();
}

function follow() {
  const { view, section, parameters } = parseAddress(location.hash);
  open(section ? "report" : view);
  if (section) reveal(section);
  if (parameters.get("cell")) openCell(parameters.get("cell"));
}

function build() {
  for (const { id, name } of VIEWS) {
    const tab = el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `view-${id}`, onclick: () => choose(id) }, name);
    const panel = el("div", { role: "tabpanel", id: `view-${id}`, "aria-labelledby": `tab-${id}` });
    tabs.set(id, tab);
    panels.set(id, panel);
    list.append(tab);
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...tabs.values()];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.click();
    next.focus();
  });
  // All views go into the page's main part; what it held becomes the view Report.
  const main = document.querySelector("main");
  panels.get("report").append(...main.children);
  main.append(...panels.values());
}

for (const table of document.querySelectorAll("figure.table table")) makeSortable(table);
makeSavable();
joinMarks();
// A page without data of cells, such as that of a comparison, has no views.
if (document.getElementById("page-data")) {
  build();
  addEventListener("hashchange", follow);
  addEventListener("popstate", follow);
  follow();
}
