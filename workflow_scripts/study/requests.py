"""The requests that the cells of a study need of a workload, and whether they fit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_scripts.physics.model_facts import vocabulary_and_context
from workflow_scripts.study.grid import Cell
from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.request import Request, Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import Workload


def requests_of(
    name: str,
    spec: Workload,
    cells: Sequence[Cell],
    vocabulary: Vocabulary,
    config: Mapping[str, Any],
    count: int | None = None,
) -> tuple[list[Request], list[Request]]:
    """The requests of the workload `name`, and those that warm up, for cells of one model. `count`: by
    default as many as one of the cells needs at most. Raises WorkloadError if there are too few, or one of them does
    not fit the shortest context of the cells."""
    count = count or max(spec.prompts_for(cell.knobs.max_concurrency) for cell in cells)
    try:
        requests = make_requests(spec, vocabulary, count)
        warmup = make_warmup(spec, vocabulary, requests)
        _check_fits([*requests, *warmup], cells, vocabulary_and_context(config)[1])
    except WorkloadError as e:
        raise WorkloadError(f"workload {name!r}: {e}") from None
    return requests, warmup


def _check_fits(requests: Iterable[Request], cells: Iterable[Cell], max_positions: int) -> None:
    """Raise WorkloadError, naming request and cell, if a request does not fit the shortest context of its cells."""

    def context(cell: Cell) -> int:
        return cell.knobs.longest_request or max_positions

    longest = max(requests, key=lambda request: request.total_tokens)
    tightest = min(cells, key=context)
    if longest.total_tokens > context(tightest):
        raise WorkloadError(
            f"a request of {len(longest.prompt_token_ids)} prompt and {longest.output_tokens} output tokens does not "
            f"fit the max_model_len {context(tightest)} of cell {tightest.id}: shorten the workload or raise the knob"
        )
