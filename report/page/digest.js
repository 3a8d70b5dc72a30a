// The digest of a study, from this page or from the text of another report, of which no code is run.
import { unpack } from "./data.js";

const IN_PAGE = /<template id="digest">([A-Za-z0-9+/=\s]*)<\/template>/;

const isText = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isPositive = (value) => isNumber(value) && value > 0;
const isFlag = (value) => typeof value === "boolean";
const orNothing = (test) => (value) => value === null || test(value);
const isRecordOf = (test) => (value) => typeof value === "object" && value !== null && !Array.isArray(value) && Object.values(value).every(test);
const isListOf = (test) => (value) => Array.isArray(value) && value.every(test);
const isShape = (shape) => (value) => isRecordOf(() => true)(value) && Object.entries(shape).every(([name, test]) => test(Object.hasOwn(value, name) ? value[name] : null));

const MEAN = { measure: isText, log_mean: isNumber, squared_error: orNothing(isNumber), df: orNothing(isNumber) };
const CELL = {
  id: isText, outcome: isText, reason: orNothing(isText), comparable: isFlag, source: isText, began: orNothing(isText),
  content: isRecordOf(() => true), environment: isRecordOf(isListOf(isText)), effective: isRecordOf(() => true),
  means: isListOf(isShape(MEAN)), ceilings: isRecordOf(isNumber),
  device_rate: orNothing(isPositive), start_s: orNothing(isPositive),
};
const FOUND = { ratio: isPositive, low: orNothing(isNumber), high: orNothing(isNumber), scope: orNothing(isText), verdict: orNothing(isText) };
const PAIR = { kind: isText, name: isText, cell: isText, baseline: isText, found: isShape(FOUND) };
const DIGEST = {
  version: (value) => value === 1, study: isText, settings: isRecordOf(() => true),
  cells: isListOf(isShape(CELL)), pairs: isListOf(isShape(PAIR)),
};

// The digest if it is valid; otherwise an error that names the invalid part.
export function checkDigest(digest) {
  for (const [name, test] of Object.entries(DIGEST)) {
    if (!isShape({ [name]: test })(digest)) throw new Error(`The digest of the other report is damaged, or of another version: ${name}.`);
  }
  return digest;
}

export async function digestOf(html) {
  const found = IN_PAGE.exec(html);
  if (!found) throw new Error("This file is not a report of kvsweep, or it is from a version without comparisons.");
  let digest;
  try {
    digest = await unpack(found[1]);
  } catch {
    throw new Error("The digest of the other report is damaged: it cannot be unpacked.");
  }
  return checkDigest(digest);
}

export async function ownDigest() {
  const held = document.getElementById("digest");
  if (!held) throw new Error("This report has no digest of its study, so it cannot be compared.");
  return checkDigest(await unpack(held.content.textContent));
}
