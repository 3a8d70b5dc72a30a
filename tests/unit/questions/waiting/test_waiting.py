"""What a GPU waits for, by hand-worked steps."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.questions.limits.ceilings import rates_of
from workflow_scripts.questions.waiting.table import (
    OCCASION_SD,
    SCHEMA,
    _prompt_costs,
    divided,
    estimate_error,
    ratios_without_waiting,
    waiting,
)

LLAMA = "llama-3.1-8b-instruct"


def steps(*rows, repeat=0, hits=0):
    """Steps of (end in ms, prompt tokens, generated tokens); a token of a prompt takes 0.1 ms, all weights 1 ms."""
    frame = pd.DataFrame(rows, columns=["time_s", "prompt_tokens", "generation_tokens"])
    frame["time_s"] /= 1000
    return frame.assign(cell_id="c", start=1, repeat=repeat, prefix_hits=hits, token_s=1e-4, weights_s=1e-3)


# Decode steps of two sequences take 2 ms, those of one sequence 1 ms.
REPEAT = steps(
    (4.0, 5, 1),  # 1 ms of work, 3 ms until the first request has arrived
    (9.0, 29, 2),  # 29 and 2 tokens are 3.1 ms of operations; reading the weights hides 1 ms of them
    (11.0, 0, 2),
    (13.0, 0, 2),
    (18.0, 0, 2),  # the host launches the next step, which has a prompt, and the GPU waits for 3 ms
    (20.5, 9, 2),  # 1.1 ms of operations, 1 ms of them hidden
    (22.5, 0, 2),
    (23.5, 0, 1),
    (24.5, 0, 1),
)


def milliseconds(repeats):
    found = divided(repeats)
    seconds = [name for name in found if name.endswith("_s")]
    return found.assign(**{name: 1000 * found[name] for name in seconds})


def test_work_and_waits_add_up_to_the_time_of_the_steps():
    one = milliseconds(REPEAT).loc[("c", 1, 0)]
    assert one["prompt_steps"] == 3
    assert one["decode_step_s"] == pytest.approx(2)
    assert one["arrival_s"] == pytest.approx((4 - 1) + (5 - 4.1))
    assert one["launch_s"] == pytest.approx((5 - 2) + (2.5 - 2.1))
    assert one["other_s"] == pytest.approx(0)
    assert one["device_s"] == pytest.approx(1 + 4.1 + 2 + 2 + 2 + 2.1 + 2 + 1 + 1)
    assert one[["device_s", "launch_s", "arrival_s", "other_s"]].sum() == pytest.approx(24.5)


def test_work_is_that_of_the_cell_and_a_slow_step_is_waiting():
    slow = REPEAT.assign(repeat=1, time_s=REPEAT["time_s"] + np.where(REPEAT.index >= 6, 7e-4, 0))
    found = milliseconds(pd.concat([REPEAT, REPEAT.assign(repeat=2), slow]))
    assert found["device_s"].tolist() == pytest.approx([17.2] * 3)
    assert found["other_s"].tolist() == pytest.approx([0, 0.7, 0])


def test_a_step_with_many_prompts_hides_every_launch_and_cached_tokens_are_not_computed():
    late = steps((4, 5, 1), (9, 29, 2), (11, 0, 2), (13, 0, 2), (113, 600, 2), (115, 0, 2))
    one = milliseconds(late).loc[("c", 1, 0)]
    assert one["launch_s"] == pytest.approx(0)
    assert one["device_s"] == pytest.approx(2 + 4.1 + 2 + 2 + 100 + 2)  # no step has one sequence alone
    cached = milliseconds(REPEAT.assign(prefix_hits=REPEAT["prompt_tokens"])).loc[("c", 1, 0)]
    assert cached["device_s"] == pytest.approx(1 + 2 + 2 + 2 + 2 + 2 + 2 + 1 + 1)


def test_a_repeat_with_a_step_of_unknown_time_is_not_divided():
    unknown = REPEAT.assign(repeat=1, token_s=np.nan)
    assert list(divided(pd.concat([REPEAT, unknown])).index) == [("c", 1, 0)]


def test_the_data_sheet_stands_in_for_rates_that_were_not_measured(tmp_path):
    cells = pd.DataFrame({"model": LLAMA, "dtype": "bfloat16", "quantization": ["", "fp8"]}, index=["c", "quantized"])
    cells = cells.assign(knob_tensor_parallel_size=1, knob_pipeline_parallel_size=1)
    (costs,) = _prompt_costs(cells, rates_of(get_gpu("h200"), tmp_path)).itertuples()
    facts = read_model_facts(get_model(LLAMA).config, "bfloat16")
    # An H200 was measured at 786.5 TFLOP/s and 4.24 TB/s.
    assert costs.token_s == pytest.approx(2 * facts.layer_matmul_parameters / (0.85 * 786.5e12), rel=0.01)
    assert costs.weights_s == pytest.approx(facts.decode_weight_bytes / 4.24e12, rel=0.01)


@pytest.mark.parametrize(
    ("rate", "varies", "error", "gpu"),
    [
        *[(101, 1e-4, 0, "h200"), (109, 1e-4, 0, "h200"), (101, 0.02, 0, "h200"), (101, 1e-4, 0, "h100-sxm")],
        (101, 1e-4, 0.02, "h200"),
    ],
)
def test_the_ratio_of_two_rates_without_waiting(rate, varies, error, gpu, tmp_path):
    starts = pd.DataFrame({"start": [1, 2, 3], "repeat": 1, "of_start": np.exp(varies * np.array([1.0, -1.0, 0.0]))})
    rates = pd.DataFrame({"cell_id": ["a", "b", "c"], "output_tokens_per_device_s": [rate, 100, 100]})
    rates = rates.assign(device_s=[100 / rate, 1, 2], gpu=["h200", gpu, "h200"]).merge(starts, how="cross")
    rates["output_tokens_per_device_s"] *= rates.pop("of_start")
    rates["device_error"] = float(error)
    without_gpus = waiting(table(cell({"max_num_seqs": 4}, gpu="cpu-all")), tmp_path, tmp_path)
    assert without_gpus.empty
    rates = SCHEMA.validate(without_gpus.merge(rates, how="right"))
    others = pd.Series(["b", "not known", "c"])  # the last did twice the work
    found = ratios_without_waiting(others, pd.Series(["a"] * 3), rates)
    assert found["ratio"][0] == pytest.approx(rate / 100)
    # Two GPUs have occasions of their own.
    half = math.log(found["high"][0] / found["ratio"][0])
    if gpu != "h200":
        assert half == pytest.approx(stats.norm.ppf(0.975) * 2**0.5 * OCCASION_SD, rel=0.1)
    else:
        assert half < 0.006 if max(varies, error) < 0.01 else 0.01 < half < 0.1
    assert found.loc[1:].isna().all(axis=None)


@dataclass
class Server:
    """An engine that launches each step while its GPU computes the one before, if the host is fast enough."""

    prompt_share: float
    step_s: float
    of_sequence_s: float
    launch_s: float
    host_share: float

    @classmethod
    def drawn(cls, rng):
        """Its decode steps may take the host as long as the GPU, and those with prompts longer."""
        ends = ((0.84, 0.98), (3.6e-3, 4.7e-3), (1e-6, 2e-5), (0.005, 0.03), (0.3, 1.05))
        return cls(*(rng.uniform(*end) for end in ends))

    def steps(self, rng, requests, slots):
        """The end of each step with its tokens, and the time for which the GPU computed."""
        waiting, running, rows = [list(of) for of in requests], [], []
        ends, launched_s, work_s = [0.0, 0.0], 0.02, 0.0
        while waiting or running:
            new = [waiting.pop(0) for _ in range(min(slots - len(running), len(waiting)) if rows else 1)]
            prompts, count = sum(prompt for prompt, _ in new), len(running)
            decode_s = self.step_s + self.of_sequence_s * count
            operations_s = (prompts + count + len(new)) * TOKEN_S * 0.85 / self.prompt_share
            gpu_s = decode_s * rng.normal(1, 0.005) + max(operations_s - WEIGHTS_S, 0) * bool(new)
            host_s = self.launch_s if new else self.host_share * decode_s
            launched_s = max(launched_s, ends[-2]) + host_s * rng.lognormal(0, 0.2)
            ends.append(max(ends[-1], launched_s) + gpu_s)
            work_s += gpu_s
            rows.append((ends[-1], prompts, count + len(new)))
            running = [[prompt, left - 1] for prompt, left in running + new if left > 1]
        return pd.DataFrame(rows, columns=["time_s", "prompt_tokens", "generation_tokens"]), work_s


TOKEN_S, WEIGHTS_S = 2.5e-5, 3.6e-3


def test_the_interval_of_a_ratio_without_waiting_holds_the_known_one_in_93_percent():
    rng, cells, work_s = np.random.default_rng(8), [], []
    for n in range(160):
        if n % 2 == 0:  # both cells of a pair have the same requests
            requests = np.stack([rng.lognormal(5, 0.9, 64), rng.lognormal(4, 0.7, 64)], axis=1).astype(int) + 8
        made, of_gpu_s = Server.drawn(rng).steps(rng, requests.tolist(), 16)
        cells.append(made.assign(cell_id=f"{n:03}", start=1, repeat=0, prefix_hits=0))
        work_s.append(of_gpu_s)
    found = divided(pd.concat(cells).assign(token_s=TOKEN_S, weights_s=WEIGHTS_S)).reset_index().sort_values("cell_id")
    assert (found["launch_s"] >= 0).all()
    waits = 1 - np.array(work_s) / found["last_s"]
    found["driver_idle_share"] = waits + rng.normal(0, 0.01, len(found))
    found["waiting_share"] = 1 - found["device_s"] / found["last_s"]
    error, off = estimate_error(found).to_numpy(), np.log(found["device_s"].to_numpy() / work_s)
    half = stats.norm.ppf(0.975) * np.hypot(error[::2], error[1::2])
    assert (abs(off[::2] - off[1::2]) <= half).mean() >= 0.93
    assert np.median(half) < 0.06
    assert (abs(off[::2] - off[1::2]) <= 0.01).mean() < 0.93
