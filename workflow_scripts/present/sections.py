"""The sections of the page, in order. A section is a heading, a sentence, and parts that make its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from workflow_scripts.present import findings, overview, predicted, reserved
from workflow_scripts.present import serving_figures as serving
from workflow_scripts.present.glossary import glossary
from workflow_scripts.present.report import Part, figure, table
from workflow_scripts.present.report_tables import MissingError


@dataclass(frozen=True)
class Section:
    """One section; `id` is its address in the page. If a summary lacks data, the section with the details says so."""

    id: str
    title: str
    lead: str
    parts: Sequence[Part]
    is_summary: bool = False


_EFFECTS = {
    "gpu": "Device",
    "engine": "Engine",
    "model": "Model",
    "workload": "Workload",
    "held": "Other knobs",
    "values": "Values",
    "value": "Fastest",
    "baseline": "Slowest",
    "ratio": "Ratio (95 % interval)",
    "verdict": "Verdict",
    "moved_with_it": "Moved with it",
    "repeats_needed": "Repeats to decide",
    "bound_by": "Bound by",
}

# Knobs whose effects have a section of their own.
_OWN_SECTION = ("max_num_seqs", "block_size", "enable_prefix_caching", "num_speculative_tokens")

_CELL = {"gpu": "Device", "engine": "Engine", "model": "Model", "workload": "Workload", "knobs": "Settings"}

_SERVERS = {
    "gpu": "Device",
    "model": "Model",
    "workload": "Workload",
    "engine": "Engine",
    "endpoint": "Server",
    "knobs": "Settings and load",
    "load": "Load",
    "request_rate_per_s": "Requests per s asked for",
    "users": "Users",
    "requests_per_s": "Requests per s answered",
    "output_tokens_per_s": "Output tokens per s",
    "ttft_s_p50": "TTFT, median (s)",
    "ttft_s_p99": "TTFT, p99 (s)",
    "itl_s_p50": "ITL, median (s)",
    "tpot_s_p50": "TPOT, median (s)",
    "e2e_s_p99": "End to end, p99 (s)",
    "goodput_requests_per_s": "Goodput (requests per s)",
    "running_peak": "Most sequences at once (server)",
    "in_flight_peak": "Most requests at once (client)",
    "memory_utilization": "Device memory in use (share)",
    "kv_cache_usage_peak": "KV cache in use (share)",
    "preemptions": "Preemptions",
    "saturated": "More than it sustains",
    "limited_by": "Limited by",
}


def effects_of(knob: str) -> Part:
    """The table of the effects of one knob, with all of its values compared."""

    def keep(effects: pd.DataFrame) -> pd.DataFrame:
        return effects[(effects["knob"] == knob) & (effects["comparison"] == "overall")]

    return table("effects", _EFFECTS, f"Effect of {knob} on output tokens per second", keep)


def _with_prefix_cache(cells: pd.DataFrame) -> pd.DataFrame:
    """First repeats with a prefix cache; engines have one by default, so it must have had hits or have been varied."""
    knob = cells.get("knob_enable_prefix_caching", pd.Series(dtype=object))
    if not (cells["prefix_cache_hits"] > 0).any() and knob.nunique() < 2:
        raise MissingError("no prefix cache found anything, and the study does not turn it on and off")
    return cells[(cells["repeat"] == 0) & (cells["prefix_cache_queries"] > 0)]


def _with_energy(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians of each cell over its repeats."""
    values = ["power_w_mean", "energy_j", "energy_j_per_output_token"]
    known = cells.reindex(columns=[*_CELL, *values]).dropna(subset="energy_j")
    if known.empty:
        raise MissingError("no device told its power over the time of a repeat")
    return known.groupby(list(_CELL), sort=False)[values].median().reset_index()


SECTIONS: Sequence[Section] = (
    Section(
        "findings",
        "Headline findings",
        "What the tables say, in their words; each is taken up below.",
        [
            overview.simulated,
            overview.remote_code,
            overview.native_types,
            findings.cannot_show,
            overview.load_warning,
            overview.slowed_gpus,
            overview.unsteady_cells,
            overview.unsuccessful,
            serving.sustained,
            findings.speculation,
            findings.prefix_caching,
            findings.knobs,
            findings.models,
            findings.engines,
            findings.devices,
            findings.capacity_predicted,
            findings.claims_counted,
        ],
        is_summary=True,
    ),
    Section(
        "runs",
        "What was run on what",
        "",
        [
            overview.counts,
            overview.devices,
            overview.engines,
            overview.workloads,
            figure("workload_lengths"),
            figure("workload_arrivals"),
        ],
    ),
    Section(
        "max-num-seqs",
        "Throughput against max-num-seqs",
        "How much more a device gives when more sequences may run at once.",
        [figure("output_by_max_num_seqs"), figure("total_by_max_num_seqs"), effects_of("max_num_seqs")],
    ),
    Section(
        "block-size",
        "Throughput against block size",
        "Whether the size of a KV block changes how fast tokens come.",
        [figure("output_by_block_size"), effects_of("block_size")],
    ),
    Section(
        "prefix-caching",
        "Prefix caching",
        "The same requests with the cache of common beginnings on and off.",
        [
            figure("prefix_caching"),
            effects_of("enable_prefix_caching"),
            table(
                "cells",
                {
                    "gpu": "Device",
                    "model": "Model",
                    "workload": "Workload",
                    "knobs": "Settings",
                    "num_requests": "Requests",
                    "requests_with_prefix_hits": "of them with hits",
                    "prefix_cache_hit_rate": "Hit rate of tokens",
                    "prefix_cache_hit_rate_predicted": "Hit rate predicted",
                    "prefix_cache_saved_pct": "Tokens not computed (%)",
                },
                "What the prefix cache found, in the first repeat of each cell that has one",
                _with_prefix_cache,
            ),
        ],
    ),
    Section(
        "speculation",
        "Speculative decoding",
        "Tokens drafted ahead, by n-grams of the text or by a small model, and checked by the model in one step.",
        [
            effects_of("num_speculative_tokens"),
            table(
                "cells",
                {
                    "gpu": "Device",
                    "model": "Model",
                    "workload": "Workload",
                    "knobs": "Settings",
                    "repeat": "Repeat",
                    "draft_tokens": "Drafted tokens",
                    "accepted_draft_tokens": "of them accepted",
                    "draft_acceptance_rate": "Share accepted",
                    "tokens_per_draft_mean": "Tokens a sequence and step with drafts",
                    "output_tokens_per_s": "Output tokens per s",
                },
                "What became of the drafts, a row a repeat",
                lambda cells: cells[cells["draft_tokens"] > 0],
            ),
        ],
    ),
    Section(
        "settings",
        "Other settings",
        "Cells that differ in one other setting alone.",
        [
            table(
                "effects",
                {"knob": "Setting", **_EFFECTS},
                "Effects of other settings on output tokens per second",
                lambda effects: effects[~effects["knob"].isin(_OWN_SECTION) & (effects["comparison"] == "overall")],
            )
        ],
    ),
    Section(
        "engines",
        "HuggingFace against vLLM",
        "Equal work on both engines, and what the difference is made of.",
        [
            figure("engines"),
            figure("engine_decomposition"),
            findings.decomposition,
            table(
                "engines",
                {
                    "gpu": "Device",
                    "model": "Model",
                    "workload": "Workload",
                    "vllm_knobs": "vLLM settings",
                    "hf_engine": "HuggingFace engine",
                    "hf_knobs": "its settings",
                    "vllm_output_tokens_per_s": "vLLM output tokens per s",
                    "hf_output_tokens_per_s": "HuggingFace output tokens per s",
                    "improvement_ratio": "Ratio (95 % interval)",
                    "reason": "Why not comparable",
                },
                "Every vLLM cell against every HuggingFace cell",
            ),
        ],
    ),
    Section(
        "serving",
        "Serving",
        "Servers under load: what they answered, how long it took, and what was more than they sustain.",
        [
            serving.load_findings,
            figure("serving_latency"),
            figure("serving_throughput"),
            table("serving_summary", _SERVERS, "Servers side by side, a row a load"),
        ],
    ),
    Section(
        "capacity",
        "KV capacity",
        "How many tokens, blocks and requests fit, predicted beside measured.",
        [
            figure("kv_capacity"),
            findings.capacity_predicted,
            findings.capacity,
            table(
                "capacity",
                {
                    "gpu": "Device",
                    "model": "Model",
                    "engine": "Engine",
                    "knobs": "Settings",
                    "source": "Source",
                    "observed_num_blocks": "Blocks",
                    "predicted_num_blocks": "Blocks predicted",
                    "observed_kv_cache_tokens": "Tokens",
                    "predicted_kv_cache_tokens": "Tokens predicted",
                    "kv_cache_tokens_error_pct": "Error (%)",
                    "observed_max_concurrency": "Requests of full length",
                    "predicted_max_concurrency": "of them predicted",
                    "observed_kv_cache_bytes": "KV cache (GiB)",
                },
                "Capacity of the KV cache, what the engine had beside what was predicted",
            ),
        ],
    ),
    Section(
        "predictions",
        "Predicted beside measured",
        "What every cell should do by its schedule and its device, before it ran, and what it did.",
        [
            predicted.prediction_findings,
            figure("predicted_beside_measured"),
            figure("predicted_by_max_num_seqs"),
            table(
                "predictions",
                {
                    "gpu": "Device",
                    "engine": "Engine",
                    "model": "Model",
                    "workload": "Workload",
                    "knobs": "Settings",
                    "predicted": "Predicted output tokens per s",
                    "low": "at least",
                    "high": "at most",
                    "measured": "Measured",
                    "error_pct": "Error (%)",
                    "fitted": "Fitted to",
                    "flagged": "Worth a look",
                    "running_peak_predicted": "Sequences at once, predicted",
                    "running_peak_measured": "Sequences at once, measured",
                    "speed_source": "Speed of the device from",
                },
                "Output tokens per s of every cell, predicted beside measured",
                lambda predictions: predictions[
                    (predictions["quantity"] == "output_tokens_per_s") & predictions["predicted"].notna()
                ],
            ),
        ],
    ),
    Section(
        "over-time",
        "Memory over time",
        "What happens inside a repeat.",
        [figure("memory_over_time"), figure("sequences_over_time"), figure("kv_cache_over_time")],
    ),
    Section(
        "kv-memory",
        "KV memory reserved and used",
        "What engines set aside for keys and values at equal work, and how much of it the work needed.",
        [figure("kv_reserved_and_used"), reserved.reserved_and_used],
    ),
    Section(
        "waste",
        "Memory waste per block size",
        "How much of the memory that was set aside for keys and values held no token.",
        [
            figure("waste_by_block_size"),
            table(
                "waste",
                {
                    "cell_id": "Cell",
                    "repeat": "Repeat",
                    "layout": "Layout",
                    "block_size": "Block size",
                    "waste_pct": "Without tokens (%)",
                    "wasted_slots_per_sequence": "Empty slots a sequence",
                    "expected_wasted_slots_per_sequence": "expected",
                    "source": "Source",
                },
                "Waste in the layouts that engines had",
                lambda waste: waste[waste["source"] == "measured"],
            ),
        ],
    ),
    Section(
        "devices",
        "Ratios of devices",
        "Whether one device is faster than another by the ratio of their memory bandwidths, or by another.",
        [
            figure("device_ratios"),
            table(
                "ratios",
                {
                    "gpu_a": "Device",
                    "gpu_b": "over",
                    "engine": "Engine",
                    "model": "Model",
                    "workload": "Workload",
                    "knobs": "Settings",
                    "ratio": "Ratio (95 % interval)",
                    "bandwidth_ratio": "Bandwidths (published)",
                    "flop_ratio": "Matrix rates (published)",
                    "measured_bandwidth_ratio": "Bandwidths (measured)",
                    "measured_flop_ratio": "Matrix rates (measured)",
                    "kv_tokens_ratio": "KV-cache tokens",
                    "explanation": "Explained by",
                    "nearest_difference_pct": "Above the nearest (%)",
                },
                "Ratios of output tokens per second",
                lambda ratios: ratios[ratios["metric"] == "output_tokens_per_s"],
            ),
        ],
    ),
    Section(
        "limits",
        "How near the hardware's limits",
        "What share of the device's bandwidth and arithmetic the work needed at least, and cells above a ceiling.",
        [
            findings.limits,
            figure("mbu_by_max_num_seqs"),
            figure("mfu_by_max_num_seqs"),
            table(
                "limits",
                {
                    "cell_id": "Cell",
                    "repeat": "Repeat",
                    "rates": "Device rates by",
                    "output_tokens_per_s_ceiling": "Ceiling (output tokens per s)",
                    "factor": "Measured over ceiling",
                    "mbu": "MBU",
                    "mfu": "MFU",
                    "decode_bound_by": "Decoding bound by",
                    "steps_bound_by": "Steps bound by",
                },
                "Repeats nearest to their ceilings",
                lambda limits: limits.sort_values("factor", ascending=False),
            ),
        ],
    ),
    Section(
        "energy",
        "Energy",
        "What all GPUs of a cell took while it was timed, and of it for each generated token.",
        [
            table(
                "cells",
                {
                    **_CELL,
                    "power_w_mean": "Power (W)",
                    "energy_j": "Energy (J)",
                    "energy_j_per_output_token": "J per output token",
                },
                "Power and energy, medians over the repeats of each cell",
                _with_energy,
            ),
        ],
    ),
    Section(
        "claims",
        "Claims re-tested",
        "What others published, held against the hardware's limits, arithmetic and this study.",
        [findings.claims],
    ),
    Section(
        "recommendations",
        "Recommendations",
        "Settings to serve with. A configuration named as a tie is not shown to be slower.",
        [findings.recommendations],
    ),
    Section(
        "cells",
        "Every cell",
        "What became of each cell, with the reason where it is not ok. A cell that failed is a result, never a zero.",
        [figure("grid_outcomes"), overview.reasons, overview.not_as_asked, overview.every_cell],
    ),
    Section(
        "provenance",
        "Provenance",
        "Where and with what the numbers were made.",
        [overview.load_warning, overview.loaded_cells, overview.slowed_cells, overview.provenance],
    ),
    Section("glossary", "Glossary", "Words of this page, in short.", [glossary]),
)
