// The state of the views in the address: `#view=explore&y=ttft_s_p50&gpu=h200&gpu=l40s`. Any other fragment is the
// address of a section of the report.

export function parseAddress(fragment) {
  const text = fragment.replace(/^#/, "");
  const parameters = new URLSearchParams(text.includes("=") ? text : "");
  // Unlike decodeURIComponent, this accepts a percent sign that is not the start of an encoded character.
  const section = text.includes("=") ? "" : new URLSearchParams(`section=${text}`).get("section");
  return { view: parameters.get("view") ?? "report", parameters, section };
}

export function current() {
  return parseAddress(location.hash).parameters;
}

// Change some parameters, without a step in the history: a list gives several values; null, "" and [] remove one.
export function changeAddress(changes) {
  const parameters = current();
  for (const [name, value] of Object.entries(changes)) {
    parameters.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== "") parameters.append(name, one);
  }
  history.replaceState(null, "", `#${parameters}`);
  return parameters;
}
