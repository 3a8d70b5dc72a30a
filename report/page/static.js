// What the script adds to the static page: tables that can be sorted by a column.

function sortBy(table, heading, column) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = (row) => row.cells[column].textContent;
  const number = (row) => parseFloat(text(row).replaceAll(",", ""));
  const order = (a, b) => {
    const difference = number(a) - number(b);
    return Number.isNaN(difference) ? text(a).localeCompare(text(b), "en", { numeric: true }) : difference;
  };
  const rows = [...table.tBodies[0].rows].sort(order);
  table.tBodies[0].append(...(down ? rows.reverse() : rows));
}

// `whole(column)`, if some rows are left out, shows them and sorts instead.
export function makeSortable(table, whole = null) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => (whole ? whole(column) : sortBy(table, heading, column)));
  });
}

// Open the section or part with this address, and all folds around it.
export function reveal(id) {
  const target = document.getElementById(id);
  let fold = target?.closest("details");
  for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
}

// Tab reaches the first mark of a figure, and arrow keys the others; Enter opens the cell.
export function joinMarks() {
  for (const marks of document.querySelectorAll(".marks")) {
    const links = [...marks.children];
    marks.addEventListener("keydown", ({ key }) => links[links.indexOf(document.activeElement) + { ArrowRight: 1, ArrowLeft: -1 }[key]]?.focus());
  }
}
