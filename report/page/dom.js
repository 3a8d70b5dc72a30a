// Elements. Text always enters as text nodes, so nothing in a log or a name can become markup.
import { makeSortable } from "./static.js";
import { csvOf, download, slug } from "./save.js";

const ROWS_AT_ONCE = 50;

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

// A labelled list of choices; options are [value, words].
export function choice(label, options, value, onchange) {
  const items = options.map(([of, words]) => el("option", { value: of, selected: of === value }, words));
  const select = el("select", { onchange: (event) => onchange(event.target.value) }, items);
  return el("label", { class: "choice" }, el("span", {}, label), select);
}

export function definitionList(entries) {
  return el("dl", { class: "facts" }, entries.map(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]));
}

// A button that saves something as a file of a kind, named for readers who cannot see to what it belongs.
export function saveAs(kind, what, save) {
  return el("p", { class: "save" }, "Save as ", el("button", { type: "button", class: "link", onclick: save, "aria-label": `Save as ${kind}: ${what}` }, kind));
}

// The button of a table; `whole()` gives the table with all its rows.
export function saveTable(caption, whole) {
  return saveAs("CSV", caption, () => download(`${slug(document.title, caption)}.csv`, csvOf(whole()), "text/csv"));
}

// A table in a box that scrolls; rows are lists of texts or elements, the first of each is its heading. If rows are left
// out, `whole()` gives the table with all rows, which is the one that is saved.
export function tableOf(caption, headings, rows, numeric = [], whole = null) {
  const isLong = headings.map((_, i) => rows.some((row) => typeof row[i] === "string" && row[i].length > 48));
  const classOf = (i) => `${numeric[i] ? "number" : isLong[i] ? "long" : ""}${i ? "" : " name"}`;
  const table = el(
    "table",
    { "aria-label": caption },
    el("thead", {}, el("tr", {}, headings.map((h, i) => el("th", { scope: "col", class: classOf(i) }, h)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((item, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: classOf(i) }, item))))),
  );
  return el(
    "div",
    { class: "table" },
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, table),
    saveTable(caption, () => whole?.().querySelector("table") ?? table),
  );
}

// A table that shows more rows when asked, and sorts and saves all; `rows` are functions that give the row.
export function longTable(caption, headings, rows, numeric = []) {
  const box = el("div");
  const table = (most) => tableOf(caption, headings, rows.slice(0, most).map((row) => row()), numeric, most < rows.length ? () => table(rows.length) : null);
  const draw = (count, by = null) => {
    const more = el("button", { type: "button", class: "plain", onclick: () => draw(count + ROWS_AT_ONCE) }, `Show ${ROWS_AT_ONCE} more`);
    box.replaceChildren(table(count), ...(rows.length > count ? [el("p", { class: "note" }, `${count} of ${rows.length.toLocaleString("en")} rows are shown. `, more)] : []));
    makeSortable(box.querySelector("table"), rows.length > count ? (column) => draw(rows.length, column) : null);
    if (by !== null) box.querySelectorAll("thead button")[by].click();
  };
  draw(ROWS_AT_ONCE);
  return box;
}
