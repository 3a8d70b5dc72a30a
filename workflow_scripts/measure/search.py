"""The search for the highest rate that meets a study's limits: passes of the workload, each at a rate that follows from
those before. Each pass has its own arrivals, and sends no more requests once too many have missed the limits. A pass
whose queue grows is too high a rate, even if it ends before its requests are late."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from workflow_scripts.engines.engine import Engine, EngineSetup, RequestRecord
from workflow_scripts.study.outcome import LoadSearch, SearchPass, WarmUp
from workflow_scripts.study.study import WITHIN_SHARE, Slo, is_late
from workflow_scripts.workloads.highest_load import Search, queue_grows
from workflow_scripts.workloads.request import Request

# The seeds of rounds follow each other; those of passes in a round are others.
SEEDS_APART = 1000
# A rate is searched up to this multiple of the warm-up's, which a short pass may keep with a queue that grows.
HIGHEST = 16.0


def search_load(
    engine: Engine,
    setup: EngineSetup,
    slo: Slo,
    requests: Sequence[Request],
    warmup: WarmUp,
    serve: Callable[[int], Sequence[RequestRecord] | None],
) -> LoadSearch:
    """Serve passes until the search ends, or until `serve` gives None for one, by its number from 0, because it failed.
    It begins at half of the rate of the warm-up, which showed all that the server serves at once."""
    pass_s = min(warmup.passes_s)
    first, most = warmup.requests / pass_s / 2, warmup.requests / pass_s * HIGHEST
    least = min(first, 1 / pass_s)  # a request takes no longer than a pass, so hardly any has company
    search = Search(first, least, most)
    most_late = len(requests) - math.ceil(WITHIN_SHARE * len(requests))
    passes: list[SearchPass] = []
    while (value := search.next()) is not None:
        late: list[str] = []

        def too_late(record: RequestRecord, late: list[str] = late) -> bool:
            if not _is_within(record, slo):
                late.append(record.request_id)
            return len(late) > most_late

        others = {name: of for name, of in setup.knobs.items() if name != "find"}
        knobs = {**others, "request_rate_per_s": value}
        seed = setup.arrival_seed + SEEDS_APART * len(passes)
        engine.use(replace(setup, knobs=knobs, arrival_seed=seed, is_enough=too_late))
        if (records := serve(len(passes))) is None:
            break
        kept = len(late) <= most_late
        grows = kept and queue_grows(*_waits(records))
        met = kept and not grows
        passes.append(SearchPass(load=value, met=met, requests=len(records), late=len(late)))
        search.passes.append((value, met))
        found = "within the limits, but its queue grows" if grows else "within the limits" if met else "too high"
        print(f"{setup.knobs['find']}: {value:.4g} is {found}", flush=True)
    return LoadSearch(least=least, most=most, passes=passes)


def _waits(records: Sequence[RequestRecord]) -> tuple[list[float], list[float]]:
    """When requests arrived, and how long each waited for its first token."""
    answered = [
        (r.queued_s, r.first_token_s) for r in records if r.queued_s is not None and r.first_token_s is not None
    ]
    return [arrived_s for arrived_s, _ in answered], [first_s - arrived_s for arrived_s, first_s in answered]


def _is_within(record: RequestRecord, slo: Slo) -> bool:
    if record.queued_s is None or record.first_token_s is None or record.last_token_s is None:
        return False  # it failed
    tpot_s = (record.last_token_s - record.first_token_s) / max(1, record.output_tokens - 1)
    latencies = {"ttft_s": record.first_token_s - record.queued_s, "tpot_s": tpot_s}
    return not is_late(slo.bounds(), latencies | {"e2e_s": record.last_token_s - record.queued_s})
