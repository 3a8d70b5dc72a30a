// The view Calculator: how many tokens and requests fit in a KV cache, and how fast decoding can be at most.
import { definitionList, el } from "./dom.js";
import { bytes_per_block, decode_step_flops, expected_slots_wasted_per_sequence, kv_cache_bytes, max_concurrency, num_blocks, output_tokens_per_s_ceiling } from "./formulas.js";
import { cellWords } from "./explore.js";
import { openCell } from "./drawer.js";
import { choiceInput, numberInput } from "./inputs.js";
import { flopRate } from "./verdicts.js";
import { bytes, number, plural, withUnit } from "./words.js";

const GIB = 2 ** 30;
export const WEIGHTS = { "": "as in the checkpoint", fp8: "FP8", awq: "AWQ, 4 bits", gptq: "GPTQ, 4 bits" };

// The capacity for {model, device, quantization, kv, utilization, blockSize, length, overhead (bytes), sequences}.
export function capacity(of) {
  const weights = of.model.weights[of.quantization];
  const perToken = of.model.kv_bytes_per_token[of.kv];
  const perBlock = bytes_per_block(of.blockSize, perToken);
  const free = kv_cache_bytes(of.device.memory_bytes, of.utilization, weights.weight_bytes, of.overhead);
  const blocks = num_blocks(free, perBlock);
  const requests = max_concurrency(blocks, of.blockSize, of.length);
  const sequences = Math.min(of.sequences, Math.floor(requests));
  const flop_per_s = flopRate(of.model, of.device, of.quantization);
  const matmul = of.model.layer_parameters + of.model.lm_head_parameters;
  const flops = decode_step_flops(matmul, 1, of.length, of.model.attention_width);
  const rate = sequences >= 1 && of.device.memory_bandwidth_bytes_per_s
    ? output_tokens_per_s_ceiling(sequences, weights.decode_weight_bytes, of.device.memory_bandwidth_bytes_per_s, of.length, perToken, flops, flop_per_s)
    : null;
  return { perToken, perBlock, weights: weights.weight_bytes, free, blocks, tokens: blocks * of.blockSize, requests, sequences, rate };
}

// A function that gives the bytes of a cell's model, 0 if they are not known.
export function modelBytes(catalog) {
  const sizes = new Map(catalog.models.map(({ name, weights }) => [name, weights[""].weight_bytes]));
  return (cell) => sizes.get(cell.model) ?? 0;
}

export function showCalculator(panel, { catalog, cells }) {
  const devices = catalog.devices.filter((device) => device.memory_bytes !== null);
  // The fields begin with the settings of the cell with KV blocks that has the largest model and most sequences at once.
  const size = modelBytes(catalog);
  const [start = cells[0] ?? {}] = cells.filter((cell) => cell.num_gpu_blocks).sort((a, b) => size(b) - size(a) || b.max_concurrency_allowed - a.max_concurrency_allowed);
  const out = el("div", { role: "status" });
  const update = () => {
    const model = catalog.models.find(({ name }) => name === inputs.model.value());
    const device = devices.find(({ name }) => name === inputs.device.value());
    const given = Object.fromEntries(["share", "block", "length", "extra", "seqs"].map((name) => [name, inputs[name].value()]));
    if (Object.values(given).includes(null)) {
      out.replaceChildren(el("p", { class: "absent" }, "Each field needs a number in its range."));
      return;
    }
    const quantization = inputs.weights.value() in model.weights ? inputs.weights.value() : "";
    const found = capacity({ model, device, quantization, kv: inputs.kv.value(), utilization: given.share / 100, blockSize: given.block, length: given.length, overhead: given.extra * GIB, sequences: given.seqs });
    out.replaceChildren(
      definitionList([
        ["Memory per token", bytes(found.perToken)],
        [`Memory per block of ${plural(given.block, "token")}`, bytes(found.perBlock)],
        ["Weights", bytes(found.weights)],
        ["Left for the KV cache", found.free > 0 ? bytes(found.free) : "nothing: the weights do not fit"],
        ["KV blocks", number(found.blocks, 12)],
        ["Tokens in the KV cache", number(found.tokens, 12)],
        [`Requests of ${plural(given.length, "token")} at once`, number(found.requests)],
        ["Empty slots in a sequence's last block, on average", withUnit(expected_slots_wasted_per_sequence(given.block), "tokens")],
        [`Maximum output tokens per second, ${plural(found.sequences, "sequence")} of ${plural(given.length, "token")} at once`, found.rate === null ? "not known" : `${withUnit(found.rate, "tokens/s")} (upper limit from the data sheet)`],
      ]),
      ...(quantization !== inputs.weights.value() ? [el("p", { class: "note" }, "The checkpoint of this model has quantized weights of its own; these are used.")] : []),
    );
  };
  const inputs = {
    model: choiceInput("Model", "model", catalog.models.map(({ name }) => [name, name]), start.model, update),
    device: choiceInput("Device", "device", devices.map(({ name }) => [name, name]), devices.some(({ name }) => name === start.gpu) ? start.gpu : "h200", update),
    weights: choiceInput("Weights", "weights", Object.entries(WEIGHTS), start.knob_quantization ?? "", update),
    kv: choiceInput("Type of the KV cache", "kv", [["auto", "type of the model"], ["fp8", "FP8"], ["bfloat16", "BF16"], ["float32", "FP32"]], start.knob_kv_cache_dtype ?? "auto", update),
    share: numberInput("Memory that the engine may use (%)", "share", Math.round(100 * (start.knob_gpu_memory_utilization ?? 0.9)), { min: 1, max: 100, changed: update }),
    block: numberInput("Block size (tokens)", "block", start.block_size_effective ?? start.knob_block_size ?? 16, { min: 1, step: 1, changed: update }),
    length: numberInput("Tokens per request", "length", start.knob_max_model_len ?? 4096, { min: 1, step: 1, changed: update }),
    seqs: numberInput("Maximum number of sequences at once", "seqs", start.max_concurrency_allowed ?? 256, { min: 1, step: 1, changed: update }),
    extra: numberInput("Activations, graphs and libraries (GiB)", "extra", 0, { min: 0, changed: update }),
  };
  panel.replaceChildren(
    el("h2", {}, "KV-cache calculator"),
    el("p", { class: "lead" }, "Computed, not measured: how much a KV cache holds on a device, and the highest possible rate of decoding at the rates of its data sheet. Without activations, graphs and libraries the result is an upper limit; the command kvsweep capacity predicts them."),
    el("div", { class: "controls" }, Object.values(inputs).map(({ node }) => node)),
    start.num_gpu_blocks ? el("p", { class: "note" }, `The fields begin with the settings of a cell whose engine reported ${number(start.num_gpu_blocks, 12)} KV blocks: `, el("button", { type: "button", class: "link", onclick: () => openCell(start.cell_id) }, cellWords(start))) : "",
    out,
  );
  update();
}
