"""Costs that no calibration of one GPU has: of old hosts, of links between ranks, and of servers.

`config/calibration/public_runs.yaml` holds them, fitted to runs that others published; docs/plan.md says how well they
hold for runs that they were not fitted to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import Field

from workflow_scripts.catalog.gpus_and_models import CONFIG, Gpu
from workflow_scripts.common.records import Record, read_yaml, validated
from workflow_scripts.engines.vllm.memory import ASYNC_SCHEDULING, EngineSettings
from workflow_scripts.physics.layers import Attention
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import COMPUTING, READING, StepCosts

PUBLIC_COSTS = CONFIG / "calibration/public_runs.yaml"
GPUS_OF_A_NODE = 8


class HostCosts(Record):
    """Seconds per step, and per sequence in it, in which the device waits for a host."""

    steps: float
    sequences: float


class Interconnect(Record):
    """`bytes_per_s`: of one GPU in one direction, by the data sheet. `latency_s`: of an all-reduce, by the number of
    ranks; the next larger number counts, or the largest."""

    bytes_per_s: float
    latency_s: Mapping[int, float]

    def latency_of(self, ranks: int) -> float:
        sizes = sorted(self.latency_s)
        return self.latency_s[next((size for size in sizes if size >= ranks), sizes[-1])]


class GroupBand(Record):
    """Half widths of the band of predictions like those of `runs` public runs, in per cent: of rates and whole times,
    of the time per output token, and of that to the first token. Nine of ten runs of sources that were left out of the
    fit lie inside."""

    group: str
    error_pct: float
    tpot_error_pct: float
    ttft_error_pct: float
    runs: int
    sources: tuple[str, ...]


class PublicCosts(Record):
    """`synchronous`: of a host that plans one step after the other, as before vLLM 0.14. `link_share`: of a link's rate
    that all-reduces reach. `server_steps`, `server_s`: what a server adds to each
    step, and to the time to the first token. `multi_head_reading`: factor on reading KV if query heads share none.
    `kernel_share`: of the time to read the matrices of a layer of `layer_parameters`, what does not depend on their
    size. `bands`: by `Beyond.band`. `kv_error_pct`: of tokens in the KV cache, from logs."""

    version: int
    synchronous: HostCosts
    links: Mapping[str, Interconnect]
    link_share: float = Field(gt=0, le=1)
    server_steps: float
    server_s: float
    multi_head_reading: float
    kernel_share: float
    layer_parameters: float
    bands: Mapping[str, GroupBand]
    kv_error_pct: float


@cache
def public_costs(path: Path = PUBLIC_COSTS) -> PublicCosts:
    return validated(PublicCosts, read_yaml(path), str(path))


def is_synchronous(version: str) -> bool:
    """Whether vLLM of a version plans a step only when the one before is done; an empty one is the current version.

    >>> [is_synchronous(version) for version in ("0.10", "0.14.0", "")]
    [True, False, False]
    """
    return bool(version) and EngineSettings(vllm_version=version).version < ASYNC_SCHEDULING


def _is_multi_head(facts: ModelFacts | None) -> bool:
    heads = [(part.heads, part.kv_heads) for part, _ in facts.of_kind(Attention)] if facts else []
    return bool(heads) and all(of_queries == of_keys for of_queries, of_keys in heads)


def parameters_of_a_layer(facts: ModelFacts) -> float:
    return facts.layer_matrix_parameters / facts.layers


@dataclass(frozen=True)
class Beyond:
    """In what a prediction differs from a GPU that was calibrated: a host that plans no step ahead, unless the
    calibration is of that version; ranks; whether times are those of a server's clients; the model and the one that was
    calibrated, if any; whether the model itself was."""

    gpu: Gpu
    synchronous: bool
    ranks: int
    served: bool
    facts: ModelFacts | None
    calibrated: ModelFacts | None
    same_model: bool = False

    def costs(self, costs: StepCosts, public: PublicCosts | None = None) -> StepCosts:
        """Costs of one GPU's steps with what comes on top, by default as in the project's file."""
        public, more = public or public_costs(), dict.fromkeys(("steps", "sequences"), 0.0)
        factors = dict.fromkeys((*READING, *COMPUTING), 1.0)
        if self.synchronous:
            more["steps"] += public.synchronous.steps
            more["sequences"] += public.synchronous.sequences
        if self.served:
            more["steps"] += public.server_steps
        if _is_multi_head(self.facts) and not _is_multi_head(self.calibrated):
            factors["kv_bytes"] *= public.multi_head_reading
        if self.facts:
            # A kernel takes some time to begin and to end, so that large matrices are read at a higher rate.
            usual = parameters_of_a_layer(self.calibrated) if self.calibrated else public.layer_parameters
            smaller = usual / parameters_of_a_layer(self.facts) * self.ranks
            factors["weight_bytes"] *= 1 + public.kernel_share * (smaller - 1)
        if self.ranks > 1 and self.gpu.link:
            link = public.links[self.gpu.link]
            more["reductions"] = link.latency_of(self.ranks)
            # Each rank sends and gets its vectors once in parts, but for its own part, and once as sums.
            more["reduced_bytes"] = 2 * (self.ranks - 1) / self.ranks / (link.bytes_per_s * public.link_share)
        scaled = {kind: getattr(costs, kind) * factor for kind, factor in factors.items()}
        return costs.model_copy(update=scaled | {kind: getattr(costs, kind) + cost for kind, cost in more.items()})

    @property
    def band(self) -> GroupBand:
        """The band of the group that a prediction belongs to; what was seen to be worst decides."""
        groups = {
            "synchronous": self.synchronous,
            "data_sheet": self.calibrated is None,
            "ranks": self.ranks > 1,
            "calibrated": self.same_model,
        }
        return public_costs().bands[next((name for name, applies in groups.items() if applies), "other_model")]

    @property
    def how(self) -> str:
        """What was added, in words; empty if nothing was."""
        named = ["a host that plans no step ahead (before vLLM 0.14)"] * self.synchronous
        if self.ranks > 1:
            named.append(f"all-reduces of {self.ranks} ranks over {self.gpu.link or 'an unknown link, left out'}")
        if self.ranks > GPUS_OF_A_NODE:
            named.append(f"{GPUS_OF_A_NODE} GPUs of a node (the network between nodes is not modelled)")
        named += ["a server"] * self.served
        return f"; with costs from public runs of {', '.join(named)}" if named else ""
