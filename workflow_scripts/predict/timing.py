"""A schedule timed on a device: what its steps read and compute, and so when every request gets its tokens."""

from dataclasses import dataclass, replace

import numpy as np

from workflow_scripts.engines.steps import Drafts, EngineSteps
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import (
    KIND,
    KINDS,
    AnyFloats,
    FloatArray,
    IntArray,
    StepCosts,
    StepWork,
    arrival_s,
    launch_waits_s,
    segment_parts_s,
    segment_times_s,
    usual_waits_s,
)
from workflow_scripts.predict.schedule import RequestLengths, Schedule, Segments


def step_work(
    segments: Segments, facts: ModelFacts, steps: EngineSteps, ranks: int = 1, taken_in: int | IntArray = 0
) -> StepWork:
    """Work of each segment's steps on one of `ranks` devices that share every matrix evenly, and KV heads if possible.

    A step reads all weights, but of the experts only those that its tokens are expected to use, the KV of the earlier
    tokens that its own tokens attend to, and the states of its sequences, which it also writes. Logits are computed
    once per sequence, even if its prompt is not complete. Several devices sum their results twice per layer.

    `steps`: how the engine forms them. With `one_mask`, as in HuggingFace's continuous batching, all tokens of a step
    attend to the KV of all its sequences, and a mask hides most of it. That KV is read and written to be put together,
    and again for each query head if several share a KV head. Without `graphs`, launching takes no time of its own.
    `taken_in`: requests that the engine takes in before the first step, or in each segment.
    """
    graphs, drafts = steps.graphs, steps.drafts
    per_seq = 1 + (drafts.tokens if drafts else 0)
    further = segments.decode_seqs * (drafts.further_kv_tokens if drafts else 0.0)
    tokens = segments.decode_seqs * per_seq + segments.prefill_tokens
    sequences = segments.decode_seqs + segments.prefill_seqs
    with_logits = sequences + segments.decode_seqs * (drafts.tokens if drafts and drafts.checked else 0)
    element = facts.kv_dtype_bytes(steps.kv_cache_dtype)
    # A state is read and written once per step.
    read = sequences * (2.0 * ranks * facts.state_bytes(ranks))
    computed = tokens * float(facts.state_flops)
    read_more: float = 0.0
    computed_more: AnyFloats = 0.0  # per further step of a run and decoding sequence
    for reach in facts.reaches_on(ranks):
        near = segments.within(reach.limit)
        kv_bytes, pair_flops = float(reach.kv_elements * element), float(reach.decode_pair_flops)
        if steps.one_mask:
            # HuggingFace puts the KV together, expands it if query heads share it, and reads it.
            shared_by = facts.attention.heads // facts.attention.kv_heads
            kv_bytes *= 3 + 2 * shared_by * (shared_by > 1)
            held = near.decode_kv_tokens + segments.prefill_kv_tokens
            read, computed = read + held * kv_bytes, computed + tokens * held * pair_flops
        else:
            read = read + (near.looked_back + further) * kv_bytes
            computed = computed + (near.decode_kv_tokens + further) * pair_flops * per_seq
            computed = computed + near.prefill_attended_tokens * float(reach.prefill_pair_flops)
        if reach.limit is None:
            read_more, computed_more = kv_bytes, pair_flops * (segments.decode_seqs if steps.one_mask else per_seq)
    decoding = segments.decode_seqs.astype(float)
    at_once, later = np.ndim(taken_in) == 0, np.arange(len(segments)) > 0
    work = StepWork.of(
        segments.steps.astype(float),
        {
            "weight_bytes": facts.step_weight_bytes(tokens.astype(float)) / ranks,
            "kv_bytes": read / ranks,
            "matrix_flops": facts.matrix_flops(tokens.astype(float), with_logits.astype(float)) / ranks,
            "attention_flops": computed / ranks,
            "layers": float(facts.layers),
            "activation_bytes": tokens * activation_bytes_per_token(facts, ranks),
            "sequences": sequences.astype(float),
            "prompts": segments.prefill_seqs.astype(float),
            # Each half of a layer ends with the sum of what the ranks found.
            "reductions": 2.0 * facts.layers * (ranks > 1),
            "reduced_bytes": tokens * (2.0 * facts.layers * facts.hidden * facts.kv_dtype_bytes() * (ranks > 1)),
            "requests": np.where(at_once & (later | bool(graphs)), 0.0, taken_in),
            **(graphs.launched(tokens, segments.prefill_seqs, facts.layers) if graphs else {}),
        },
        {"kv_bytes": decoding * (read_more / ranks), "attention_flops": decoding * (computed_more / ranks)},
    )
    if drafts and drafts.facts:
        work = _with_drafting(work, segments, steps, drafts, ranks)
    if graphs is None or not at_once or not taken_in:
        return work
    of_arrival: dict[str, AnyFloats] = {"requests": float(taken_in), "steps": 0.0}
    first, prompts = segments.prefill_seqs[:1], np.ones(1, dtype=np.int64)
    if first[0] > 1:  # a step with the first prompt alone is launched before
        launched = graphs.launched(segments.prefill_tokens[:1] // first, prompts, facts.layers)
        of_arrival |= {"steps": 1.0, "sequences": 1.0, "prompts": 1.0, **launched}
    return replace(work, arrival=StepWork.of(np.ones(1), of_arrival, {}).first[0])


def _with_drafting(work: StepWork, segments: Segments, steps: EngineSteps, drafts: Drafts, ranks: int) -> StepWork:
    """The work together with that of the model that drafts: a pass over all tokens of the step, then one over the last
    token of each sequence for each further drafted token. Each takes the fixed time of a step too, as on a CPU."""
    assert drafts.facts
    none, further = np.zeros_like(segments.steps), np.rint(segments.decode_seqs * drafts.further_kv_tokens).astype(int)
    later = replace(
        segments,
        decode_seqs=segments.decode_seqs + segments.prefill_seqs,
        decode_kv_tokens=segments.decode_kv_tokens + segments.prefill_kv_tokens + further,
        prefill_seqs=none,
        prefill_tokens=none,
        prefill_kv_tokens=none,
        prefill_attended_tokens=none,
    )
    first = replace(drafts, facts=None, checked=False)
    passes = [(1, segments, first), (drafts.tokens - 1, later, None)]
    kinds = [KIND[kind] for kind in KINDS if kind not in ("prompts", "requests")]
    for times, part, own in passes:
        more = step_work(part, drafts.facts, replace(steps, drafts=own, graphs=None), ranks)
        work.first[:, kinds] += times * more.first[:, kinds]
        work.growth[:, kinds] += times * more.growth[:, kinds]
    return work


def activation_bytes_per_token(facts: ModelFacts, ranks: int = 1) -> float:
    """Bytes that the operators between the matrices of all layers read and write for a token. Two norms and two
    residual sums move 10 times the hidden size, the activation moves its inputs and its output, and rotary positions
    read and write queries and keys."""
    # Four operations for each element of a query and token looked back at; keys are half of the KV cache.
    queries = sum(reach.decode_pair_flops for reach in facts.reaches) / 4
    rotary = 2 * (queries + facts.bytes_per_token() / 2 / facts.kv_dtype_bytes())
    shared = (facts.feed_forward_elements + rotary) / ranks
    return facts.kv_dtype_bytes() * (10 * facts.layers * facts.hidden + shared)


@dataclass(frozen=True)
class Timed:
    """A schedule with times: seconds from the first request's arrival.

    `segment_s` is the time of each segment; `wall_s` the end of the last step. `arrival_s` is how long it takes until
    the first step is launched, and `launch_s` how long the device later waits for launches in total. `first_token_s`,
    `ttft_s` and `tpot_s` have one element per request; `ttft_s` counts from when the engine's core has the request, and
    `tpot_s` is NaN for a request of a single token.
    """

    segment_s: FloatArray
    wall_s: float
    arrival_s: float
    launch_s: float
    first_token_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray


def time_schedule(
    schedule: Schedule, work: StepWork, costs: StepCosts, requests: RequestLengths, users: int | None = None
) -> Timed:
    """Times of a schedule's steps and requests on a device; `work` is that of its segments by `step_work`. `users`: how
    many users send a request as soon as their last one is answered; without, all are sent at once."""
    within_s = segment_times_s(work, costs)
    # A schedule with arrivals was made without a history of launches.
    waits_s = launch_waits_s(work, costs) if requests.arrival_s is None else usual_waits_s(work, costs)
    until_s = arrival_s(work, costs)
    end_s = until_s + np.cumsum(schedule.segments.idle_s + waits_s + within_s)
    first_steps = schedule.segments.first_step

    def made_at_s(steps: IntArray) -> FloatArray:
        segment = np.searchsorted(first_steps, steps, side="right") - 1
        within = work.part(segment, (steps - first_steps[segment] + 1).astype(float))
        return end_s[segment] - within_s[segment] + segment_times_s(within, costs)

    first_s, last_s = made_at_s(schedule.first_token_step), made_at_s(schedule.last_token_step)
    arrives_s = np.zeros(len(requests)) if requests.arrival_s is None else requests.arrival_s
    if users:
        arrives_s = np.concatenate([np.zeros(users), np.sort(last_s)])[: len(requests)]
    elif requests.arrival_s is None and costs.launch is not None and work.arrival is not None:
        # Of requests that are sent at once, the engine's core launches a step for the first one, and takes the others
        # in when it is done.
        arrives_s[0], arrives_s[1:] = costs.launch.start, until_s
    further = (requests.output_tokens - 1).astype(float)
    return Timed(
        segment_s=within_s + waits_s,
        wall_s=float(end_s[-1]),
        arrival_s=until_s,
        launch_s=float(within_s.sum() + waits_s.sum() - segment_parts_s(work, costs).sum()),
        first_token_s=first_s,
        ttft_s=first_s - arrives_s,
        tpot_s=np.divide(last_s - first_s, further, out=np.full(len(requests), np.nan), where=further > 0),
    )
