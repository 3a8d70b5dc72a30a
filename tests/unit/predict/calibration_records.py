"""Records of calibrations whose steps take exactly as long as known costs say, or nearly so."""

from dataclasses import replace

import numpy as np

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import sha256_of
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.step_time import StepWork, launch_waits_s, segment_times_s, single_steps
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.step_fit import scheduled
from workflow_scripts.predict.timing import time_schedule
from workflow_scripts.study.calibrations import CalibrationRecord, CalibrationStart, Pass, points_for
from workflow_scripts.study.protocol import PROTOCOL_VERSION

SETTINGS = {"block_size": 32, "num_gpu_blocks": 10_000, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
SETTINGS |= {"max_model_len": 512, "enable_prefix_caching": True}
HERE = {"name": "a CPU", "processor": "a CPU (X 1-2): avx2", "cores": [1]}


def facts_of(model, dtype="float32"):
    return read_model_facts(get_model(model).config, dtype)


def requests_of(lengths):
    return RequestLengths(*(np.array(column) for column in zip(*lengths, strict=True)))


def calibration_with(costs, model="tiny-llama-57m", noise=0.0, rounds=3, depths=(1, 2), slower=1.0, **changes):
    """A calibration of an engine with these costs.

    `noise` is the scatter of a point's passes, and `depths` divide the layers of each start. Each start is `slower`
    than the one before by this factor.
    """
    known = {"gpu": "cpu-1core", "device": HERE, "engine": "vllm", "engine_version": "vllm 1", "dtype": "float32"}
    known |= {"model": model, "config_sha256": sha256_of(get_model(model).config), "protocol": PROTOCOL_VERSION}
    known |= {"variant": "eager1", "knobs": {"enforce_eager": True}}
    known |= {"host": "here", "host_load": {}, "measured_at": "today"}
    record = CalibrationRecord(**known | changes)
    facts, draw, starts = facts_of(model, record.dtype), np.random.default_rng(1), []
    for start, depth in enumerate(depths):
        part, passes = replace(facts, stack=facts.stack[: facts.layers // depth]), []
        for number in range(rounds):
            # The first round is far slower, as it is with real engines.
            scale = slower**start * (1 if number else 5)
            for point, lengths in enumerate(points_for(16, 400, "cuda" if costs.overlap else "cpu")):
                factor = scale * np.exp(draw.normal(0, noise))
                passes.append(_passed(costs, record, part, point, lengths, factor, 100.0 * (number + 1)))
        starts.append(CalibrationStart(layers=part.layers, effective=SETTINGS, passes=passes))
    return record.model_copy(update={"starts": starts})


def _passed(costs, record, facts, point, lengths, factor, start):
    requests = requests_of(lengths)
    schedule, work = scheduled(requests, record, SETTINGS, facts, not costs.overlap)
    rows = single_steps(work)
    one_each = StepWork(np.ones(len(rows)), rows, np.zeros_like(rows))
    ends_s = start + np.cumsum(factor * (segment_times_s(one_each, costs) + launch_waits_s(one_each, costs)))
    ttft_s = (factor * time_schedule(schedule, work, costs, requests).ttft_s).tolist()
    seen = {"start_s": start, "end_s": ends_s[-1], "step_ends_s": ends_s.tolist(), "ttft_s": ttft_s}
    return Pass(point=point, requests=lengths, **seen)
