// One filter for all that a view shows: from each group the chosen values; all without a choice; `none` if all were unchecked.
import { el } from "./dom.js";
import { OUTCOMES, PLACES, UNKNOWN, setting } from "./words.js";

function sortedValues(values) {
  const rank = (value) => (value === null || value === undefined ? 2 : typeof value === "number" ? 0 : 1);
  return values.sort((a, b) => rank(a) - rank(b) || (typeof a === "number" && typeof b === "number" ? a - b : 0));
}

// Properties by which cells differ: {id, words, of(cell), values, text(value)}; each has at least two values.
export function facetsOf(store) {
  const facets = [
    ...Object.entries(PLACES).map(([id, words]) => ({ id, words, of: (cell) => cell[id], text: (value) => value || UNKNOWN })),
    ...store.knobs.filter(({ differs }) => differs).map(({ name, words }) => ({ id: `set.${name}`, words: words[0].toUpperCase() + words.slice(1), of: (cell) => cell[`knob_${name}`] ?? null, text: setting, isKnob: true })),
    { id: "outcome", words: "Outcome", of: (cell) => cell.outcome, text: (value) => OUTCOMES[value] ?? String(value) },
  ];
  for (const facet of facets) facet.values = sortedValues([...new Set(store.cells.map(facet.of))]);
  return facets.filter((facet) => facet.values.length > 1);
}

// The cells that the parameters of the address allow; a value is given by its text.
export function filtered(cells, facets, parameters) {
  const active = facets
    .map((facet) => ({ facet, chosen: new Set(parameters.getAll(facet.id)) }))
    .filter(({ chosen }) => chosen.size);
  return cells.filter((cell) => active.every(({ facet, chosen }) => chosen.has(String(facet.of(cell)))));
}

// The form; `changed(id, values)` is called with the chosen values of a group.
export function filterForm(facets, parameters, changed) {
  const form = el("form", { class: "filter", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() });
  for (const facet of facets) {
    const chosen = new Set(parameters.getAll(facet.id));
    const count = el("span", { class: "note" });
    const say = () => (count.textContent = chosen.size ? ` ${chosen.size - chosen.has("none")} of ${facet.values.length}` : " all");
    say();
    const boxes = facet.values.map((value) => {
      const key = String(value);
      const toggle = (event) => {
        chosen[event.target.checked ? "add" : "delete"](key);
        chosen[chosen.size ? "delete" : "add"]("none");
        say();
        changed(facet.id, [...chosen]);
      };
      return el("label", {}, el("input", { type: "checkbox", value: key, checked: chosen.has(key), onchange: toggle }), " ", facet.text(value));
    });
    form.append(
      el("details", { class: "facet" }, el("summary", {}, facet.words, count), el("fieldset", {}, el("legend", { class: "skip" }, facet.words), boxes)),
    );
  }
  return form;
}
