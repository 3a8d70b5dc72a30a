"""A schedule timed on a device: what its steps read and compute, and so when every request gets its tokens."""

from dataclasses import dataclass

import numpy as np

from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import StepConstants, StepWork, segment_times_s
from workflow_scripts.predict.schedule import FloatArray, IntArray, RequestLengths, Schedule, Segments


def step_work(segments: Segments, facts: ModelFacts, kv_cache_dtype: str = "auto", ranks: int = 1) -> StepWork:
    """Bytes and operations of each segment's steps on one of `ranks` devices that share every matrix evenly.

    A step reads all weights, but of the experts only those that its tokens are expected to use, and the KV of the
    earlier tokens that its own tokens attend to. Logits are computed once per sequence, even if its prompt is not
    complete. Communication between devices takes no time here.
    """
    per_token, (reach,) = facts.bytes_per_token(kv_cache_dtype), facts.uniform().reaches
    looked_back_at = segments.decode_kv_tokens - segments.decode_seqs
    looked_back_at = looked_back_at + segments.prefill_kv_tokens - segments.prefill_tokens
    tokens = (segments.decode_seqs + segments.prefill_tokens).astype(float)
    matrices = formulas.forward_flops(
        facts.layer_matmul_parameters,
        facts.vocab * facts.hidden,
        0,
        tokens=tokens,
        logit_tokens=(segments.decode_seqs + segments.prefill_seqs).astype(float),
        attended_tokens=np.zeros(len(segments)),
    )
    pairs = segments.decode_kv_tokens * float(reach.decode_pair_flops)
    pairs = pairs + segments.prefill_attended_tokens * float(reach.prefill_pair_flops)
    decoding = segments.decode_seqs.astype(float)
    return StepWork(
        steps=segments.steps.astype(float),
        read_bytes=(facts.step_weight_bytes(tokens) + looked_back_at.astype(float) * per_token) / ranks,
        read_bytes_growth=decoding * per_token / ranks,
        flops=(matrices + pairs) / ranks,
        flops_growth=decoding * float(reach.decode_pair_flops) / ranks,
    )


@dataclass(frozen=True)
class Timed:
    """A schedule with times: seconds from the first request's arrival.

    `segment_s` is the time of each segment; `wall_s` the end of the last step. `ttft_s` and `tpot_s` have one element
    per request; `tpot_s` is NaN for a request of a single token.
    """

    segment_s: FloatArray
    wall_s: float
    ttft_s: FloatArray
    tpot_s: FloatArray


def lay(schedule: Schedule, work: StepWork, constants: StepConstants, requests: RequestLengths) -> Timed:
    """Times of a schedule's steps and requests on a device.

    Args:
        schedule: what runs when.
        work: its segments by `step_work`.
        constants: of the device.
        requests: the requests of the schedule.
    """
    segment_s = segment_times_s(work, constants)
    end_s = np.cumsum(schedule.segments.idle_s + segment_s)
    first_steps = schedule.segments.first_step

    def made_at_s(steps: IntArray) -> FloatArray:
        """When these steps end."""
        segment = np.searchsorted(first_steps, steps, side="right") - 1
        within = work.part(segment, (steps - first_steps[segment] + 1).astype(float))
        return end_s[segment] - segment_s[segment] + segment_times_s(within, constants)

    first_s, last_s = made_at_s(schedule.first_token_step), made_at_s(schedule.last_token_step)
    arrival_s = 0.0 if requests.arrival_s is None else requests.arrival_s
    further = (requests.output_tokens - 1).astype(float)
    return Timed(
        segment_s=segment_s,
        wall_s=float(end_s[-1]),
        ttft_s=first_s - arrival_s,
        tpot_s=np.divide(last_s - first_s, further, out=np.full(len(requests), np.nan), where=further > 0),
    )
