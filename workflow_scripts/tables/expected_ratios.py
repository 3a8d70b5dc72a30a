"""What is expected of ratios before anything is measured: of each pair of devices, and of vLLM over static batches.

Predicted rates of equal settings are divided, and the ratios that the study's claims publish stand beside them. The
plan prints this table; pages show it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, Gpu, load_gpus, resolve
from workflow_scripts.catalog.published import Claim, Published
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.tables.summary import RATE
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

# A ratio of the devices explains an observed or published one if the two differ by at most this.
NEAR_PCT = 10.0
SCHEMA = table_schema(
    "expected_ratios",
    "Ratios that data sheets and predictions lead to expect, beside published ones: one row per pair of devices (all "
    "else equal), and per device of vLLM over static batches with as many sequences.",
    TEXT("a b", "every ratio is of `a` over `b`: names of devices or of engines"),
    TEXT("gpu", "the device on which two engines are compared; null for a pair of devices"),
    TEXT("engine model", "as in `cells`; `engine` is null if two are compared"),
    NUMBER("bandwidth_ratio", "of the data sheets' memory bandwidths"),
    INTEGER("settings", "settings and workloads with a predicted rate of both"),
    NUMBER("predicted_low predicted_high", "lowest and highest ratio of predicted output tokens/s; not an interval"),
    NUMBER("published", "the ratio of a claim that the study names"),
    TEXT("claim", "its id in `config/published/claims.yaml`"),
    TEXT(
        "verdict",
        "`supported` if it is within 10 % of the bandwidths' and the predicted ratios, `contradicted` if of neither, "
        "else `only as bandwidth` or `only as predicted`",
    ),
)
Row = Mapping[str, Any]


def capability_ratios(a: Gpu | None, b: Gpu | None, dtype: str | None) -> tuple[float, float]:
    """Ratio of the memory bandwidths of two devices, and of their rates of matrix products; NaN where one is unknown.

    >>> [round(ratio, 2) for ratio in capability_ratios(load_gpus()["h200"], load_gpus()["l40s"], "bfloat16")]
    [5.56, 2.73]
    """
    gpus = [gpu for gpu in (a, b) if gpu]
    bandwidth = [gpu.memory_bandwidth_bytes_per_s for gpu in gpus]
    flop = [gpu.peak_flop_per_s(dtype) for gpu in gpus if dtype]
    return quotient(*bandwidth), quotient(*flop)


def quotient(a: float | None = None, b: float | None = None) -> float:
    return a / b if a and b else math.nan


def expected_ratios(plan: pd.DataFrame, claims: Sequence[Claim] = ()) -> pd.DataFrame:
    """The table, from the rows of a plan with a predicted rate."""
    known = plan.dropna(subset=RATE)
    rows = [*_of_devices(known), *_of_engines(known)]
    stated = [{**row, **one} for row in rows for one in _published(row, claims) or [{}]]
    return pd.DataFrame(stated, columns=list(SCHEMA.columns))


def _of_devices(known: pd.DataFrame) -> Iterator[Row]:
    gpus = load_gpus()
    alike = ["workload", "knobs"]
    for (engine, model), part in known.groupby(["engine", "model"], sort=False):
        of_gpu = {str(gpu): rows.set_index(alike)[RATE] for gpu, rows in part.groupby("gpu", sort=False)}
        for first, second in combinations(of_gpu, 2):
            bandwidth = capability_ratios(gpus.get(first), gpus.get(second), None)[0]
            a, b = (second, first) if bandwidth < 1 else (first, second)
            ratio = (1 / bandwidth if bandwidth < 1 else bandwidth) if bandwidth == bandwidth else None
            row = {"a": a, "b": b, "engine": engine, "model": model, "bandwidth_ratio": ratio}
            yield row | _range(of_gpu[a] / of_gpu[b])


def _of_engines(known: pd.DataFrame) -> Iterator[Row]:
    alike, at = ["gpu", "model"], ["workload", "max_num_seqs"]
    for (gpu, model), part in known.groupby(alike, sort=False):
        vllm, static = (part[part["engine"] == engine].set_index(at)[RATE] for engine in ("vllm", "hf-static"))
        of_both = vllm.to_frame("a").join(static.rename("b"), how="inner")
        if len(of_both):
            yield {"a": "vllm", "b": "hf-static", "gpu": gpu, "model": model} | _range(of_both["a"] / of_both["b"])


def _range(ratios: "pd.Series[float]") -> dict[str, float]:
    known = ratios.dropna()
    return {"settings": len(known), "predicted_low": known.min(), "predicted_high": known.max()}


def _published(row: Row, claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """What claims state about this pair, with the verdict on each."""
    stated = [claim for claim in claims if any(part.name == "throughput_ratio" for part in claim.quantities)]
    about = [claim for claim in stated if row["model"] in claim.models and _is_about(claim, row)]
    return [
        {"published": one.value("throughput_ratio"), "claim": one.id, "verdict": _verdict(one, row)} for one in about
    ]


def _is_about(claim: Claim, row: Row) -> bool:
    try:
        cards = [{card.name for card in resolve(name)} for name in claim.gpus]
    except CatalogError:
        return False
    if row.get("gpu"):
        return len(cards) == 1 and row["gpu"] in cards[0]
    return len(cards) == 2 and row["engine"] == "vllm" and (row["a"], row["b"]) in set(product(*cards))


def _verdict(claim: Claim, row: Row) -> str | None:
    published, within = claim.value("throughput_ratio"), 1 + NEAR_PCT / 100
    bandwidth: float | None = row.get("bandwidth_ratio")
    ranges = {"predicted": (row["predicted_low"], row["predicted_high"])} | (
        {"bandwidth": (bandwidth, bandwidth)} if bandwidth else {}
    )
    near = {key: low / within <= published <= high * within for key, (low, high) in ranges.items() if low == low}
    agree = [key for key, is_near in near.items() if is_near]
    if not near:
        return None
    return "supported" if len(agree) == len(near) else f"only as {agree[0]}" if agree else "contradicted"


@makes(SCHEMA, needed=lambda inputs: (inputs.paths.plan / "plan.parquet").exists())
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    published = Published(inputs.published)
    claims = [published.claim(name) for name in inputs.study.claims]
    return expected_ratios(read_parquet(inputs.paths.plan / "plan.parquet"), claims)
