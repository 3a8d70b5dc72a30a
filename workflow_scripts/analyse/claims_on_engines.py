"""Rules for claims on engines: vLLM compared with HuggingFace, utilisation by batching, and concurrent users."""

from collections.abc import Iterator
from math import isnan, nan

import pandas as pd

from workflow_scripts.analyse.claims_on_devices import CLAIMS_STUDY, LLAMA_8B, SWEEP_STUDY, against_ceilings, facts_of
from workflow_scripts.analyse.effects import PAIR
from workflow_scripts.analyse.engine_gain import BATCH_1, PLACE, STATIC_BATCH
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    PUBLISHED,
    SUPPORTED,
    Evidence,
    Finding,
    Setting,
    against_interval,
    is_same,
    measured,
    rule,
)
from workflow_scripts.analyse.published_table import published_table
from workflow_scripts.analyse.repeats import ENVIRONMENT, Row, cell_summary, counted, records
from workflow_scripts.analyse.statistics import (
    FASTER,
    FLAT,
    NOT_DECIDED,
    SLOWER,
    interval_text,
    mean_interval,
)
from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Claim
from workflow_scripts.common.wording import number
from workflow_scripts.engines.hf_engines import HF_STATIC
from workflow_scripts.engines.vllm_engines import VLLM
from workflow_scripts.physics import formulas

RATE = "output_tokens_per_s"
ON_A100_PCIE = Setting(("A100 PCIe",), model=LLAMA_8B)
# The claim identifies its model by its size, 135M parameters.
SMALL_MODEL = "smollm-135m"
ON_A100_80GB = Setting(("A100 80GB",), model=LLAMA_8B)

# A published percentage differs if it is more than this many points from what was found.
SAME_POINTS = 5.0


# --- HuggingFace alone -----------------------------------------------------------------------------------------------


@rule("hf-generate-on-a100", test=f"{SWEEP_STUDY} (sweep hf-baseline)")
def hf_generate(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by the ceiling of one sequence, or by a different rate measured on the same cards."""
    rate, batch = claim.value("tokens_per_s"), claim.value("batch_size")
    yield from _hf_ceilings(rate, batch)
    cells = evidence.tables["cells"]
    if "knob_batch_size" not in cells:
        return
    static = cells[(cells["engine"] == HF_STATIC.name) & cells["knob_batch_size"].eq(batch)]
    summary, samples = cell_summary(static, RATE)
    intervals, scopes = mean_interval(samples)
    for row in records(summary):
        value, low, high = (float(end[row["sample"]]) for end in intervals)
        rate_text = interval_text(value, low, high, " output tokens/s", scopes[row["sample"]])
        text = f"HuggingFace makes {rate_text} at batch {batch:g}."
        bears = ON_A100_PCIE.covers(row["gpu"], row["model"])
        says = against_interval(low, high, rate)
        yield measured(bears, row, text, says, (row["cell_id"],))


def _hf_ceilings(rate: float, batch: float) -> Iterator[Finding]:
    """The ceilings if the rate counts all tokens, which is in the rate's favour, and if it counts output tokens."""
    rates = pd.DataFrame({"gpu": ["A100 PCIe"], "batch_size": [batch]})
    yield from against_ceilings(rates.assign(tokens_per_s=rate), "tokens_per_s", "claims.yaml")
    yield from against_ceilings(rates.assign(output_tokens_per_s=rate), RATE, "claims.yaml", decides=False)


# --- vLLM over HuggingFace -------------------------------------------------------------------------------------------


@rule("vllm-over-hf-on-a100", test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf)")
def vllm_over_hf(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted if HuggingFace's rate is impossible, or if a different ratio was measured at equal work."""
    ratio = claim.value("throughput_ratio")
    hf = evidence.published.claim("hf-generate-on-a100")
    rate, batch = hf.value("tokens_per_s"), hf.value("batch_size")
    sweep = evidence.published.claim("throughput-flat-over-max-num-seqs")
    table = published_table(evidence.published, sweep)
    vllm = table.loc[table["gpu"] == "A100 PCIe", "throughput_tok_s"].mean()
    text = (
        f"{vllm:,.0f} over {rate:g} tokens/s are {vllm / rate:.3g}x, for vLLM with up to"
        f" {table['max_num_seqs'].max()} sequences over HuggingFace with {batch:g}, so the ratio includes batching."
    )
    yield Finding(text, PUBLISHED, "A100 PCIe, as published", ("claims.yaml", str(sweep.table)))
    yield from _hf_ceilings(rate, batch)
    for row in _improvements(evidence, BATCH_1):
        says = _against(row, ratio)
        bears = ON_A100_PCIE.covers(row["gpu"], row["model"])
        yield measured(bears, row, row["explanation"], says, _ids_of(row))


def _improvements(evidence: Evidence, kind: str) -> list[Row]:
    """At equal work, vLLM's fastest cell over HuggingFace's fastest of one kind, per device, model and workload."""
    engines = evidence.tables["engines"]
    rows = engines[engines["comparable"].eq(True) & engines["hf_kind"].eq(kind)]
    rates = ["vllm_output_tokens_per_s", "hf_output_tokens_per_s"]
    return records(rows.sort_values(rates, ascending=False, kind="stable").drop_duplicates(list(PLACE)))


def _ids_of(row: Row) -> list[str]:
    cells = (VLLM.name, row["vllm_knobs"]), (row["hf_engine"], row["hf_knobs"])
    return [f"{row['gpu']}/{engine}/{row['model']}/{row['workload']}/{knobs}" for engine, knobs in cells]


@rule("engines-on-one-a100", test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf; without TGI)")
def engines_on_one_a100(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by a rate above its ceiling, a step faster than memory, or a measurement with vLLM no faster."""
    table = published_table(evidence.published, claim).set_index("metric").transpose()
    for name, row in zip(table.index, records(table), strict=True):
        if name in _ENGINES:
            yield from _published_engine(_ENGINES[name], row, str(claim.table))
    published = claim.value("vllm_tokens_per_s") / claim.value("hf_tokens_per_s")
    for row in _improvements(evidence, STATIC_BATCH):
        says = SUPPORTED if _against(row, published) == SUPPORTED else None
        if row["verdict"] != FASTER and _ends(row)[1] < published:
            says = CONTRADICTED
        bears = ON_A100_80GB.covers(row["gpu"], row["model"])
        yield measured(bears, row, row["explanation"], says, _ids_of(row))


@rule("thirty-to-a-hundred-times-faster", test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf)")
def many_times_faster(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Supported or contradicted by the fastest cells of both engines, for each kind of batching by HuggingFace."""
    low, high = claim.range("throughput_ratio")
    one = evidence.published.claim("vllm-over-hf-on-a100").value("throughput_ratio")
    rates = evidence.published.claim("engines-on-one-a100")
    other = rates.value("vllm_tokens_per_s") / rates.value("hf_tokens_per_s")
    text = f"Other published ratios are {one:.3g} and {other:.3g}."
    yield Finding(text, PUBLISHED, "A100, 8B model, as published", ("claims.yaml",))
    for kind in (BATCH_1, STATIC_BATCH):
        for row in _improvements(evidence, kind):
            least, most = _ends(row)
            says = CONTRADICTED if most < low or least > high else None
            if low <= least and most <= high:
                says = SUPPORTED
            text = f"Over HuggingFace with {kind}: {row['explanation']}"
            yield measured(ON_GPUS.covers(row["gpu"], row["model"]), row, text, says, _ids_of(row))


@rule("faster-for-a-single-request", test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf)")
def faster_for_one(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Both engines with one sequence at a time: faster supports, slower contradicts."""
    text = "Both read all weights for each token of a single request, so paging and batching save nothing."
    yield Finding(text, COMPUTED, "any device", ("formulas.decode_step_bytes",))
    engines = evidence.tables["engines"]
    one = engines["vllm_max_num_seqs"].eq(claim.value("concurrent_requests")) & (engines["hf_kind"] == BATCH_1)
    for row in records(engines[engines["comparable"].eq(True) & one]):
        says = {FASTER: SUPPORTED, SLOWER: CONTRADICTED}.get(row["verdict"])
        yield measured(ON_GPUS.covers(row["gpu"], row["model"]), row, row["explanation"], says, _ids_of(row))


_ENGINES = {"vllm": "vLLM", "tgi": "TGI", "hf": "HuggingFace"}


def _published_engine(name: str, row: Row, where: str) -> Iterator[Finding]:
    rate, sequences, gap_ms = (float(row[metric]) for metric in ("throughput", "max_batch_size", "itl_p50"))
    rates = pd.DataFrame({"gpu": ["A100 80GB"], "batch_size": [sequences], "tokens_per_s": [rate]})
    for finding in against_ceilings(rates, "tokens_per_s", where):
        yield Finding(f"{name}: {finding.text}", finding.label, finding.scope, finding.ids, finding.says)
    bytes_per_s = max(gpu.memory_bandwidth_bytes_per_s or 0.0 for gpu in resolve("A100 80GB"))
    step_ms = 1000 * formulas.step_time_min_s(facts_of(LLAMA_8B).decode_weight_bytes, 0, bytes_per_s)
    text = (
        f"{name}: {rate:,.0f} tokens/s at {gap_ms:g} ms between the tokens of a sequence mean"
        f" {rate * gap_ms / 1000:.3g} sequences at once, if all are output tokens. Reading the weights takes at least"
        f" {step_ms:.3g} ms per step."
    )
    says = CONTRADICTED if gap_ms < step_ms else None
    yield Finding(text, COMPUTED, f"A100 80GB, {LLAMA_8B}", (where, "formulas.step_time_min_s"), says)


@rule("improvement-ratio", test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf; table engine_decomposition)")
def improvement_ratio(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted if the same vLLM cell has several ratios, depending on how HuggingFace batches."""
    one = evidence.published.claim("vllm-over-hf-on-a100").value("throughput_ratio")
    rates = evidence.published.claim("engines-on-one-a100")
    other = rates.value("vllm_tokens_per_s") / rates.value("hf_tokens_per_s")
    text = f"For an 8B model on an A100 one text gives {one:.3g}x over HuggingFace at batch 1, another {other:.3g}x."
    says = None if is_same(one, other) else CONTRADICTED
    yield Finding(text, PUBLISHED, "A100, 8B model, as published", ("claims.yaml",), says)
    engines = evidence.tables["engines"]
    by_ratio = engines[engines["comparable"].eq(True)].sort_values("improvement_ratio", kind="stable")
    cell = [*PLACE, "vllm_knobs"]
    several = by_ratio[by_ratio.duplicated(cell, keep=False)]
    lowest, highest = (records(several.drop_duplicates(cell, keep=end).sort_values(cell)) for end in ("first", "last"))
    for low, high in zip(lowest, highest, strict=True):
        yield _several_ratios(low, high)


def _several_ratios(low: Row, high: Row) -> Finding:
    text = f"vLLM with {low['vllm_knobs']} makes {_over(low)} and {_over(high)}."
    says = None
    if is_same(_ends(high)[1], _ends(low)[0]):
        says = SUPPORTED
    elif _ends(high)[0] > _ends(low)[1]:
        says = CONTRADICTED
    bears = ON_GPUS.covers(low["gpu"], low["model"])
    return measured(bears, low, text, says, [*_ids_of(low), _ids_of(high)[1]])


def _ends(row: Row) -> tuple[float, float]:
    return row["improvement_ratio_low"], row["improvement_ratio_high"]


def _against(row: Row, published: float) -> str | None:
    return against_interval(row["improvement_ratio_low"], row["improvement_ratio_high"], published)


def _over(row: Row) -> str:
    ratio, low, high = (row[f"improvement_ratio{end}"] for end in ("", "_low", "_high"))
    unit = f" times the output tokens/s of HuggingFace {row['hf_kind']}, {row['hf_knobs']}"
    return interval_text(ratio, low, high, unit, row["scope"])


# --- what batching keeps busy ----------------------------------------------------------------------------------------


@rule(
    "gpu-utilisation-of-continuous-batching",
    test=f"{SWEEP_STUDY} (sweeps hf-baseline and same-work-as-hf; utilization_pct_mean in cells)",
)
def gpu_utilisation(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Utilisations measured on GPUs, of the fastest cell with continuous and the fastest with static batching."""
    text = "NVML's utilisation is the share of time in which any kernel runs, even if it uses little of the GPU."
    yield Finding(text, PUBLISHED, "any GPU", ("NVML",))
    cells = evidence.tables["cells"]
    summary, _ = cell_summary(cells, RATE, {"utilization_pct_mean": "mean"})
    summary = summary.dropna(subset="utilization_pct_mean")
    alike = [*PLACE, *ENVIRONMENT]
    batched = summary[summary["max_concurrency_allowed"] > 1].sort_values("log_mean", kind="stable")
    batched = batched.assign(is_static=batched["engine"] == HF_STATIC.name)
    fastest = batched.drop_duplicates([*alike, "is_static"], keep="last").sort_values("is_static")
    for _, rows in fastest.groupby(alike, dropna=False, sort=False):
        if rows["is_static"].tolist() == [False, True]:
            yield _utilisations(claim, *records(rows))


def _utilisations(claim: Claim, continuous: Row, static: Row) -> Finding:
    low, high = claim.range("gpu_utilisation_static")
    busy, batch = continuous["utilization_pct_mean"], static["utilization_pct_mean"]
    as_said = abs(busy - claim.value("gpu_utilisation_continuous")) <= SAME_POINTS and low <= batch <= high
    text = (
        f"The device was {busy:.0f} % busy with continuous batching ({continuous['engine']}, {continuous['knobs']})"
        f" and {batch:.0f} % busy with static batches ({static['knobs']})."
    )
    bears = ON_GPUS.covers(static["gpu"], static["model"])
    ids = (continuous["cell_id"], static["cell_id"])
    return measured(bears, static, text, SUPPORTED if as_said else CONTRADICTED, ids)


@rule("concurrent-users-of-a-small-model", test=f"{CLAIMS_STUDY} (sweep concurrent-users)")
def concurrent_users(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """With more sequences at once, the total rate must rise, and the time of a request must rise by less."""
    users = claim.values("concurrent_users")
    yield _bytes_of_users(SMALL_MODEL, min(users), max(users))
    effects, cells = evidence.tables["effects"], counted(evidence.tables["cells"])
    served_s = (cells["prefill_s_mean"] + cells["decode_s_mean"]).astype(float).groupby(cells["cell_id"]).mean()
    for row in records(effects[(effects["knob"] == "max_num_seqs") & (effects["comparison"] == PAIR)]):
        if min(users) <= float(row["baseline"]) and float(row["value"]) <= max(users):
            slower = served_s.get(row["cell_id"], nan) / served_s.get(row["baseline_cell_id"], nan)
            text = row["explanation"]
            if not isnan(slower):
                text += f" From its start to its end a request took {number(slower)} times as long."
            bears = ON_GPUS.covers(row["gpu"], row["model"]) and row["model"] == SMALL_MODEL
            yield measured(bears, row, text, _of_users(row, slower), (row["cell_id"], row["baseline_cell_id"]))


# Tokens that each user's request holds, in an example.
_TOKENS_HELD = 512


def _bytes_of_users(model: str, few: float, many: float) -> Finding:
    facts = facts_of(model)
    bytes_of = [
        formulas.decode_step_bytes(facts.decode_weight_bytes, users * _TOKENS_HELD, facts.bytes_per_token())
        for users in (few, many)
    ]
    slower = bytes_of[1] / bytes_of[0]
    text = (
        f"A step reads the weights once for all: with {_TOKENS_HELD} tokens each, {many:g} users of {model} read"
        f" {slower:.3g} times the bytes of {few:g}. By bytes alone each token takes {slower:.3g} times as long, and all"
        f" together make {many / few / slower:.3g} times the tokens/s."
    )
    return Finding(text, COMPUTED, f"{model}, bound by memory", ("formulas.decode_step_bytes",))


def _of_users(row: Row, slower: float) -> str | None:
    if isnan(slower) or row["verdict"] == NOT_DECIDED:
        return None
    if row["verdict"] == FLAT:
        return CONTRADICTED
    low, high = row["ratio_low"], row["ratio_high"]
    return SUPPORTED if low > max(slower, 1) else CONTRADICTED if high <= max(slower, 1) else None
