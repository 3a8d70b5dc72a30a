// Inputs whose values are in the address.
import { changeAddress, current } from "./address.js";
import { choice, el } from "./dom.js";

export function numberInput(label, name, fallback, { min = 0, max = null, step = "any", changed }) {
  const value = current().get(name) ?? fallback;
  const input = el("input", {
    type: "number", min, max, step, value, inputmode: "decimal",
    oninput: () => {
      changeAddress({ [name]: input.value === String(fallback) ? null : input.value });
      changed();
    },
  });
  return {
    node: el("label", { class: "choice" }, el("span", {}, label), input),
    // The number, or null if the field is empty or holds none in its range.
    value: () => (input.value !== "" && input.validity.valid ? Number(input.value) : null),
  };
}

export function choiceInput(label, name, options, fallback, changed) {
  const known = new Set(options.map(([value]) => value));
  let value = current().get(name);
  if (!known.has(value)) value = known.has(fallback) ? fallback : options[0]?.[0];
  const node = choice(label, options, value, (next) => {
    value = next;
    changeAddress({ [name]: next });
    changed();
  });
  return { node, value: () => value };
}
