"""Rules for claims on scheduling: how many sequences run, which blocks are evicted, how GPUs share a model."""

from collections.abc import Iterator

from workflow_scripts.analyse.claims_on_devices import CLAIMS_STUDY, FOUR_GPUS, LLAMA_8B, facts_of
from workflow_scripts.analyse.effects import PAIR
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    SUPPORTED,
    Evidence,
    Finding,
    measured,
    rule,
)
from workflow_scripts.analyse.repeats import Row, counted, records
from workflow_scripts.catalog.published import Claim, plain

PRESSURE_STUDY = "snakemake --cores all --configfile config/studies/kv_pressure.yaml"
PARALLEL_STUDY = "snakemake --cores all --configfile config/studies/parallelism.yaml"

# Hit rates that differ by at most the first number of points agree; eviction changes a hit rate by at least the second.
HIT_POINTS, EVICTED_POINTS = 0.5, 1.0


@rule("prompts-limit-concurrency", test=f"{CLAIMS_STUDY} (sweep prompts)")
def prompts_limit_concurrency(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """How many sequences ran at once with this number of prompts; the claim may mean the peak or the mean over time."""
    prompts, (low, high) = claim.value("prompts"), claim.range("concurrency")
    text = (
        f"All requests of an offline benchmark wait from its start. So {plain(prompts)} of them run at once if "
        "max-num-seqs, the tokens per step and the KV blocks allow it. Later fewer run, because the short ones end "
        "first."
    )
    yield Finding(text, COMPUTED, "any device", ("docs/schedule.md",))
    cells = counted(evidence.tables["cells"]).dropna(subset=["running_peak", "running_mean"])
    cells = cells[cells["num_requests"].eq(prompts) & (cells["max_concurrency_allowed"] >= prompts)]
    for row in records(cells.drop_duplicates(["study", "source", "cell_id"])):
        peak, mean = row["running_peak"], row["running_mean"]
        text = f"Of {plain(prompts)} requests {peak:.0f} ran at once, and {mean:.0f} on average."
        says = SUPPORTED if low <= peak <= high or low <= mean <= high else CONTRADICTED
        yield measured(FOUR_GPUS.covers(row["gpu"], row["model"]), row, text, says, (row["cell_id"],))


@rule("least-recently-used-blocks-are-evicted", test=f"{PRESSURE_STUDY} (sweep prefixes)")
def evicted_blocks(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Supported where blocks were evicted and the hits are those of a schedule that evicts the longest unused ones."""
    text = (
        "vLLM keeps free blocks in a queue and takes them from its front. Freed blocks are appended, the last block of "
        "a request first, so a shared beginning stays longest."
    )
    yield Finding(text, COMPUTED, "any device", ("docs/schedule.md",))
    table = evidence.tables["predictions"]
    table = table[table["quantity"] == "prefix_cache_hit_rate"].drop_duplicates("cell_id").set_index("cell_id")
    cells = counted(evidence.tables["cells"]).dropna(subset=["prefix_cache_hit_rate"])
    for row in records(cells.drop_duplicates(["study", "source", "cell_id"])):
        found, kept = (100 * row[f"prefix_cache_hit_rate{of}"] for of in ("", "_predicted"))
        scheduled = 100 * table["predicted"].get(row["cell_id"], float("nan"))
        if kept - scheduled >= EVICTED_POINTS:
            text = (
                f"{found:.1f} % of the prompt tokens were found in the cache; {kept:.1f} % are expected without"
                f" eviction, and {scheduled:.1f} % if the blocks that were freed longest ago are evicted."
            )
            says = SUPPORTED if abs(found - scheduled) <= HIT_POINTS else None
            yield measured(ON_GPUS.covers(row["gpu"], row["model"]), row, text, says, (row["cell_id"],))


@rule("tensor-for-latency-pipeline-for-throughput", test=f"{PARALLEL_STUDY} (sweeps tensor and pipeline)")
def tensor_or_pipeline(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Tensor ranks compared with as many pipeline stages: the stages must give the higher throughput."""
    weights = facts_of(LLAMA_8B).decode_weight_bytes
    text = (
        f"Of the {weights / 1e9:.3g} GB that {LLAMA_8B} reads for a token, each of two tensor ranks reads half, at the "
        "same time. Two pipeline stages read their halves one after the other, so no token gets faster."
    )
    yield Finding(text, COMPUTED, "any GPUs", ("formulas.decode_step_bytes",))
    cells, effects = counted(evidence.tables["cells"]), evidence.tables["effects"]
    tpot = cells["tpot_s_p50"].astype(float).groupby(cells["cell_id"]).mean()
    alike = ["study", "source", "gpu", "engine", "model", "workload", "held", "baseline", "value"]
    of = {
        knob: effects[(effects["knob"] == f"{knob}_parallel_size") & (effects["comparison"] == PAIR)]
        for knob in ("tensor", "pipeline")
    }
    for row in records(of["tensor"].merge(of["pipeline"], on=alike, suffixes=("_tensor", "_pipeline"))):
        token = {knob: tpot.get(row[f"cell_id_{knob}"], float("nan")) for knob in of}
        text = (
            f"On {row['value']} GPUs, tensor parallelism makes {row['ratio_tensor']:.3g} times the output tokens/s of"
            f" {row['baseline']}, pipeline parallelism {row['ratio_pipeline']:.3g} times; a token takes"
            f" {1000 * token['tensor']:.3g} and {1000 * token['pipeline']:.3g} ms."
        )
        says = _stages_are_for_throughput(row, shorter=bool(token["tensor"] < token["pipeline"]))
        ids = [row[f"cell_id_{knob}"] for knob in of]
        yield measured(ON_GPUS.covers(row["gpu"], row["model"]), row, text, says, ids)


def _stages_are_for_throughput(row: Row, shorter: bool) -> str | None:
    tensor, pipeline = ((row[f"ratio_low_{knob}"], row[f"ratio_high_{knob}"]) for knob in ("tensor", "pipeline"))
    if pipeline[1] < tensor[0]:
        return CONTRADICTED
    return SUPPORTED if shorter and pipeline[0] > tensor[1] else None
