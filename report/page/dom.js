// Elements. Text always enters as text nodes, so nothing in a log or a name can become markup.
import { makeSortable } from "./static.js";
import { csvOf, download, latexOf, markdownOf, numericOf, slug, textsOf } from "./save.js";

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

// A labelled list of choices; options are [value, words], or [value, words, group].
export function choice(label, options, value, onchange) {
  const select = el(
    "select",
    { onchange: (event) => onchange(event.target.value) },
    ...[...Map.groupBy(options, ([, , group]) => group)].map(([group, members]) => {
      const items = members.map(([of, words]) => el("option", { value: of, selected: of === value }, words));
      return group ? el("optgroup", { label: group }, items) : items;
    }),
  );
  return el("label", { class: "choice" }, el("span", {}, label), select);
}

export function definitionList(entries) {
  return el("dl", { class: "facts" }, entries.map(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]));
}

// Buttons that save something, one per kind of file; `savers` are functions by kind.
export function saveRow(what, savers) {
  const button = ([kind, save]) => el("button", { type: "button", class: "link", onclick: save }, kind);
  const row = el("p", { class: "save" }, "Save as ", Object.entries(savers).flatMap((saver, i) => [i ? ", " : "", button(saver)]));
  nameSaves(row, what);
  return row;
}

// Name what each button saves, for readers who cannot see to what the row belongs.
export function nameSaves(row, what) {
  for (const button of row.querySelectorAll("button")) button.setAttribute("aria-label", `Save as ${button.textContent}: ${what}`);
}

// The buttons of a table; `whole()` gives the table with all its rows. Markdown is copied, or saved where that is refused.
export function saveTable(caption, whole) {
  const content = (textOf) => ((table) => textOf(textsOf(table), numericOf(table)))(whole());
  const save = (ending, type, textOf) => () => download(`${slug(document.title, caption)}.${ending}`, content(textOf), type);
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(content(markdownOf));
      event.target.textContent = "copied";
      event.target.ariaLabel = `copied: ${caption}`;
    } catch {
      save("md", "text/markdown", markdownOf)();
    }
  };
  const row = saveRow(caption, { CSV: save("csv", "text/csv", csvOf), LaTeX: save("tex", "application/x-tex", latexOf) });
  row.append("; ", el("button", { type: "button", class: "link", onclick: copy, "aria-live": "polite", "aria-label": `copy as Markdown: ${caption}` }, "copy as Markdown"));
  return row;
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
