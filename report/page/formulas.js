// Formulas of memory and speed, with the names of workflow_scripts/physics/formulas.py; a test compares the two. Sizes
// are in bytes, times in seconds, rates in bytes/s or operations/s.

export function bytes_per_block(block_size, bytes_per_token) {
  return block_size * bytes_per_token;
}

export function kv_cache_bytes(memory_bytes, utilization, weight_bytes, activation_bytes = 0, graph_bytes = 0, other_bytes = 0) {
  return memory_bytes * utilization - weight_bytes - activation_bytes - graph_bytes - other_bytes;
}

export function num_blocks(kv_bytes, block_bytes) {
  return Math.max(0, Math.floor(kv_bytes / block_bytes));
}

export function max_concurrency(blocks, block_size, max_model_len) {
  return blocks / Math.ceil(max_model_len / block_size);
}

export function expected_slots_wasted_per_sequence(block_size) {
  return (block_size - 1) / 2;
}

export function step_time_min_s(read_bytes, flops, bandwidth, flop_per_s = Infinity) {
  return Math.max(read_bytes / bandwidth, flops / flop_per_s);
}

export function prefill_flops(layer_parameters, lm_head_parameters, prompt_tokens, attention_width) {
  const attention = 2 * attention_width * prompt_tokens * (prompt_tokens + 1);
  return 2 * layer_parameters * prompt_tokens + 2 * lm_head_parameters + attention;
}

export function decode_step_flops(matmul_parameters, sequences, kv_tokens, attention_width) {
  return 2 * matmul_parameters * sequences + 4 * attention_width * kv_tokens;
}

export function request_time_min_s(sequences, prompt_tokens, output_tokens, weight_bytes, bytes_per_token, flops, bandwidth, flop_per_s = Infinity) {
  const weights_read = (weight_bytes * output_tokens) / sequences;
  const further = output_tokens - 1;
  const kv_read = bytes_per_token * further * (prompt_tokens + (further - 1) / 2);
  return step_time_min_s(weights_read + kv_read, flops, bandwidth, flop_per_s);
}

export function total_tokens_per_s_ceiling(prompt_tokens, output_tokens, request_s) {
  return (prompt_tokens + output_tokens) / request_s;
}

export function output_tokens_per_s_ceiling(sequences, weight_bytes, bandwidth, kv_tokens_per_sequence, bytes_per_token, flops_per_token, flop_per_s = Infinity) {
  const read = weight_bytes + sequences * kv_tokens_per_sequence * bytes_per_token;
  return sequences / step_time_min_s(read, sequences * flops_per_token, bandwidth, flop_per_s);
}

// Operations of a whole request, as ModelFacts.request_flops counts them.
export function request_flops(model, prompt_tokens, output_tokens) {
  const further = output_tokens - 1;
  const kv_tokens = further * (prompt_tokens + (further + 1) / 2);
  const matmul = model.layer_parameters + model.lm_head_parameters;
  return (
    prefill_flops(model.layer_parameters, model.lm_head_parameters, prompt_tokens, model.attention_width) +
    decode_step_flops(matmul, further, kv_tokens, model.attention_width)
  );
}
