// Whether two cells may be compared, as workflow_scripts/analyse/compare/comparability.py decides it; a test compares the two.

const MOST_NAMED = 3;

// A field of a record from another file; inherited fields do not count.
export function own(record, name) {
  return Object.hasOwn(record, name) ? record[name] : null;
}

function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function keysOf(...records) {
  return [...new Set(records.flatMap(Object.keys))].sort();
}

// Where two JSON values differ: {path, a, b}.
export function differences(a, b, path = "") {
  const [one, other] = Array.isArray(a) && Array.isArray(b) ? [{ ...a }, { ...b }] : [a, b];
  if (isRecord(one) && isRecord(other)) {
    return keysOf(one, other).flatMap((key) => differences(own(one, key), own(other, key), path ? `${path}.${key}` : key));
  }
  return Object.is(one, other) || one === other ? [] : [{ path, a: one, b: other }];
}

export function valueText(value) {
  if (value === null) return "nothing";
  if (typeof value === "object") return "other values";
  return typeof value === "number" ? shortest(value) : String(value);
}

// A number as Python's format ".15g" writes it.
function shortest(value) {
  const [digits, power] = value.toExponential(14).split("e").map(Number);
  if (power >= -4 && power < 15) return String(Number(value.toPrecision(15)));
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

function told(environment, name) {
  return own(environment, name) ?? [];
}

function unlike(a, b, name, words) {
  const [one, other] = [a, b].map(({ environment }) => (Object.hasOwn(environment, name) ? told(environment, name).join(", ") : "an unknown one"));
  return one === other ? null : words(one, other);
}

function several(a, b) {
  for (const [name, words] of [["lock_sha256", "locks"], ["processor", "processors"]]) {
    for (const [letter, { environment }] of [["A", a], ["B", b]]) {
      if (told(environment, name).length > 1) return `in ${letter} its starts were measured with several ${words}`;
    }
  }
  return null;
}

function content(a, b) {
  const found = differences(a.content, b.content);
  if (!found.length) return null;
  const named = found.slice(0, MOST_NAMED).map((one) => `${one.path} is ${valueText(one.a)} in A and ${valueText(one.b)} in B`);
  const more = found.length > MOST_NAMED ? `; and ${found.length - MOST_NAMED} more` : "";
  return `weights or requests differ: ${named.join("; ")}${more}`;
}

function source(a, b) {
  if (a.source !== b.source) return `its numbers are ${a.source} in A and ${b.source} in B`;
  return a.source === "simulated" ? "its numbers are simulated and say nothing about a GPU" : null;
}

const RULES = [
  (a, b) => {
    const sides = [["A", a], ["B", b]].filter(([, { comparable }]) => !comparable).map(([letter]) => letter);
    return sides.length ? `in ${sides.join(" and ")} it was measured with another definition than the study's` : null;
  },
  source,
  (a, b) => unlike(a, b, "protocol", (one, other) => `it was measured by protocol ${one} in A and ${other} in B`),
  content,
  (a, b) => unlike(a, b, "dtype", (one, other) => `it was computed in ${one} in A and in ${other} in B`),
  several,
  (a, b) => {
    const began = a.began !== null && a.began === b.began;
    const hosts = [a, b].map(({ environment }) => JSON.stringify(own(environment, "host")));
    return began && hosts[0] === hosts[1] ? "A and B hold the same measurement of it" : null;
  },
];

// Every reason not to compare two cells: what they measured if both ended ok, otherwise how they ended.
export function whyNot(a, b) {
  const rules = a.outcome === b.outcome ? RULES : [source, content];
  return rules.map((why) => why(a, b)).filter((why) => why !== null);
}
