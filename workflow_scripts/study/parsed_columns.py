"""The columns of the tables that are parsed from cells, with their types in pandas."""

from workflow_scripts.engines.engine import CLIENT_CPU_S
from workflow_scripts.engines.registry import metrics_of_columns

# Type, columns, and where their values are recorded, of which the first known one is used; for each of the names.
_SOURCES = (
    ("string", "{}", "{}", "outcome reason definition_sha256 boot_id session"),
    ("Int64", "{}", "{}", "protocol round position"),
    ("string", "{}_starts", "{}", "planned"),
    ("string", "{}", "device.{}", "processor"),
    ("string", "device_{}", "device.{}", "name uuid"),
    ("Int64", "device_{}", "device.{}", "memory_total_bytes"),
    ("string", "{}", "effective.{}", "dtype"),
    ("boolean", "{}", "effective.{}", "client_shares_cores"),
    ("Int64", "{}", "effective.{} log.{}", "num_gpu_blocks max_cudagraph_capture_size"),
    ("string", "{}", "effective.{} log.{}", "cudagraph_mode"),
    ("Int64", "{}_effective", "effective.{} log.{}", "block_size"),
    ("Int64", "{}_effective", "effective.{}", "max_num_seqs max_num_batched_tokens max_model_len"),
    ("Int64", "kv_pool_bytes", "effective.{}", "kv_cache_bytes"),
    ("string", "{}", "log.{} effective.{}", "attention_backend"),
    ("Int64", "{}", "log.{}", "kv_cache_tokens"),
    ("Float64", "{}", "log.{}", "max_concurrency available_kv_cache_gib model_weights_gib peak_activation_gib"),
    ("Float64", "{}", "log.{}", "cuda_graph_gib"),
    ("boolean", "{}", "log.{}", "graphs_from_cache"),
    ("Float64", "{}", "host_load.{}", "cpu_steal_pct cpu_others_pct"),
    ("string", "{}", "provenance.{}", "host engine_version git_commit lock_sha256"),
    ("Float64", "{}_s", "phase_s.{}", "start warmup measure"),
    ("boolean", "{}", "{}", "steady"),
    ("Float64", "highest_{}", "search.{}", "load load_low load_high"),
    ("Int64", "search_{}", "search.{}", "passes requests"),
)
RECORDED = {
    column.format(name): (dtype, [place.format(name) for place in places.split()])
    for dtype, column, places, names in _SOURCES
    for name in names.split()
}
# `effective`: all settings that took effect, a JSON object. `damaged`: what could not be read.
START_COLUMNS = {
    **{column: dtype for column, (dtype, _) in RECORDED.items()},
    **{"device_cores": "Int64", "process_memory_bytes_before": "Float64", "effective": "string", "damaged": "string"},
}
_START = {"cell_id": "string", "start": "int64"}
ROW = _START | {"repeat": "Int64"}
REQUEST_COLUMNS = {
    **ROW,
    "request_id": "string",
    **dict.fromkeys(("prompt_tokens", "output_tokens"), "Int64"),
    **dict.fromkeys(("queued_s", "scheduled_s", "first_token_s", "last_token_s", "first_answer_s"), "Float64"),
    **dict.fromkeys(("preemptions", "cached_prompt_tokens"), "Int64"),
    "sent_s": "Float64",
    # A list of numbers per request, null if the engine does not report them.
    "itl_s": "object",
    "error": "string",
    # The answer, if the workload keeps answers: a list of numbers per request, and its text.
    "token_ids": "object",
    "text": "string",
    "reasoning": "string",
}
_COUNTS = (
    *("prompt_tokens", "generation_tokens", "preempted", "prefix_hits", "recomputed_tokens"),
    *("kv_tokens_live", "kv_slots_reserved", "kv_bytes_reserved", "computed_tokens"),
)
STEP_COLUMNS = {
    **ROW,
    **{"time_s": "Float64", "running": "Int64", "waiting": "Int64", "kv_cache_usage": "Float64"},
    **dict.fromkeys(_COUNTS, "Int64"),
    "graph": "string",
}
_SAMPLED = (
    *("time_s", "memory_used_bytes", "process_memory_bytes", "utilization_pct", "process_cpu_pct", "power_w"),
    *("energy_j", "sm_clock_mhz", "memory_clock_mhz", "temperature_c"),
)
TRACE_COLUMNS = ROW | dict.fromkeys(_SAMPLED, "Float64") | {"throttle_reasons": "string"}


def table_columns() -> dict[str, dict[str, str]]:
    """The columns and types of each table; an engine may add some to `repeats`."""
    # Its times, the growth of the energy counter, and what the engines count.
    of_repeat = ("wall_s", "start_unix_s", "counted_j", CLIENT_CPU_S, *metrics_of_columns())
    sampled = {"requests": REQUEST_COLUMNS, "steps": STEP_COLUMNS, "trace": TRACE_COLUMNS}
    return {"starts": _START | START_COLUMNS, "repeats": ROW | dict.fromkeys(of_repeat, "Float64"), **sampled}
