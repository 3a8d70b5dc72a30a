// The view Audit: which numbers of a pasted table the hardware allows.
import { el, tableOf } from "./dom.js";
import { WEIGHTS } from "./calculator.js";
import { choiceInput, numberInput } from "./inputs.js";
import { audit, findColumns, parseTable } from "./verdicts.js";
import { number } from "./words.js";

export function showAudit(panel, { catalog, cells }) {
  const { published } = catalog;
  // Mean tokens per request of the study's first measured cell of the model; 200 each if there is none.
  const measured = cells.find((cell) => cell.model === published.model && cell.outcome === "ok")?.repeats[0];
  const mean = (tokens) => Math.round(measured?.[tokens] / measured?.num_requests) || 200;
  const out = el("div");
  const text = el("textarea", { rows: 8, "aria-label": "Published table", spellcheck: "false", oninput: () => update() });
  text.value = published.table;
  const update = () => {
    try {
      const [prompt, output, share, seqs] = [inputs.prompt, inputs.output, inputs.share, inputs.seqs].map((input) => input.value());
      if ([prompt, output, share, seqs].includes(null)) throw new Error("Each field needs a number in its range.");
      const model = catalog.models.find(({ name }) => name === inputs.model.value());
      const quantization = inputs.weights.value() in model.weights ? inputs.weights.value() : "";
      const rows = parseTable(text.value);
      const columns = findColumns(Object.keys(rows[0]), catalog.columns);
      const verdicts = audit(rows, model, catalog, { prompt, output }, { utilization: share / 100, sequences: seqs, quantization });
      const count = (verdict) => verdicts.filter((row) => row.verdict === verdict).length;
      const tone = { possible: "good", impossible: "bad", unknown: "" };
      out.replaceChildren(
        el("p", { role: "status" }, `${count("impossible")} impossible, ${count("possible")} possible, ${count("unknown")} unknown.`),
        tableOf(
          "Verdicts",
          ["Verdict", columns.gpu, ...(columns.sequences ? [columns.sequences] : []), columns.throughput, "Ceiling (tokens/s)", "Why"],
          verdicts.map((row, i) => [
            el("span", { class: `verdict ${tone[row.verdict]}` }, row.verdict),
            rows[i][columns.gpu],
            ...(columns.sequences ? [rows[i][columns.sequences]] : []),
            rows[i][columns.throughput],
            number(row.ceiling),
            row.reason,
          ]),
        ),
      );
    } catch (error) {
      out.replaceChildren(el("p", { class: "absent", role: "status" }, error.message));
    }
  };
  const inputs = {
    model: choiceInput("Model", "model", catalog.models.map(({ name }) => [name, name]), published.model, () => update()),
    weights: choiceInput("Weights", "weights", Object.entries(WEIGHTS), "", () => update()),
    prompt: numberInput("Prompt tokens per request", "prompt", mean("prompt_tokens"), { min: 1, changed: () => update() }),
    output: numberInput("Output tokens per request", "output", mean("output_tokens"), { min: 1, changed: () => update() }),
    share: numberInput("Memory that the engine may use (%)", "share", 100, { min: 1, max: 100, changed: () => update() }),
    seqs: numberInput("Sequences at once, if the table has no column for it", "seqs", 256, { min: 1, changed: () => update() }),
  };
  panel.replaceChildren(
    el("h2", {}, "Can this be true?"),
    el("p", { class: "lead" }, "Paste a table of published throughputs (CSV, tab-separated or Markdown) with a column for the GPU, one for the throughput and, if known, one for the sequences at once. A number above the ceiling of its device is impossible, or means something else than its table says. If something is not known, the highest possible ceiling is used. Nothing leaves this page."),
    el("div", { class: "controls" }, Object.values(inputs).map(({ node }) => node)),
    el("p", { class: "note" }, `The table below is an example, published by the source ${published.source} (config/published). ${measured ? "The tokens per request are the means of this study with that model." : ""}`),
    text,
    out,
  );
  update();
}
