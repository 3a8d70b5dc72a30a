import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.made_studies import fixed
from tests.unit.predict.planned import study, sweep
from workflow_scripts.common.files import sha256_of
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict import predictions, speed
from workflow_scripts.predict.calibrated import Speed
from workflow_scripts.predict.prediction_record import FIELDS
from workflow_scripts.predict.predictions import lengths_of, predict_cells
from workflow_scripts.predict.public_costs import public_costs
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.request import Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import PromptsWorkload


def predict(tmp_path, **changes):
    planned = study(tmp_path, **changes)
    records = predict_cells(planned, expand(planned), None, tmp_path / "no-files")
    return {record.cell_id.split("/", 1)[1]: record.row() for record in records}


def one(tmp_path, workload=None, **changes):
    given = {} if workload is None else {"workloads": {"even": workload}}
    (record,) = predict(tmp_path, sweeps=[sweep(**changes)], **given).values()
    return record


def known(monkeypatch, **changes):
    """Every device costs 1 s for each step and nothing else."""
    values = {"costs": StepCosts(steps=1), "source": "calibrated", "how": "by hand", **changes}
    monkeypatch.setattr(predictions, "speed_for", lambda *_: Speed(**values))


def test_requests_reach_a_server_when_the_client_sends_them(tmp_path, monkeypatch):
    # Steps take 1 s, and so does taking a request in. Three requests of one token: alone, each waits 2 s for it.
    known(monkeypatch, costs=StepCosts(steps=1, requests=1))
    knobs = {"block_size": 16, "max_num_seqs": 4, "max_model_len": 4096, "burstiness": 1000.0}
    rarely, often = (
        one(tmp_path, fixed(3, 3, 1), engine="vllm-serve", knobs=knobs | {"request_rate_per_s": rate})
        for rate in (0.1, 1000)
    )
    assert rarely["ttft_s_p50"] == pytest.approx(2)
    assert rarely["wall_s"] == pytest.approx(2 / 0.1 + 2, abs=0.1)
    # The first is served alone, the other two together after it.
    assert often["ttft_s_p50"] == pytest.approx(2 + 3, abs=0.01)
    assert often["wall_s"] == pytest.approx(2 + 3, abs=0.01)


def test_the_rate_by_calibrations_of_other_devices(tmp_path, monkeypatch):
    known(monkeypatch)
    others, whole = (StepCosts(steps=2), StepCosts(steps=8)), speed.predict_task

    def with_others(task):
        return whole(replace(task, cells=tuple(replace(cell, scaled=others) for cell in task.cells)))

    monkeypatch.setattr(predictions, "predict_task", with_others)
    record = one(tmp_path, fixed(2, 3, 2), knobs={"block_size": 16, "max_num_seqs": 1, "max_model_len": 4096})
    # Four steps make four tokens, at 1 s each by the device's own calibration.
    assert record["output_tokens_per_s"] == 1
    assert record["scaled_output_tokens_per_s"] == pytest.approx(1 / 4)  # the geometric mean of 2 s and 8 s is 4 s


def test_a_cell_by_hand(tmp_path, monkeypatch):
    # Two requests of 3 prompt tokens and 2 answers, one at a time, on a device where only the steps count.
    known(monkeypatch, error_pct=25.0, ttft_error_pct=100.0, covered={"sequences": 1})
    record = one(tmp_path, fixed(2, 3, 2), knobs={"block_size": 16, "max_num_seqs": 1, "max_model_len": 4096})
    assert set(record) == set(FIELDS)
    cell_s = record["start_s"] + 3 * 4 + 3 * 4 + record["stop_s"]
    assert (
        record.items()
        >= {
            **{"steps": 4, "wall_s": 4, "wall_s_low": 3.2, "wall_s_high": 5, "warmup_s": 12, "cell_s": cell_s},
            **{"output_tokens_per_s": 1, "output_tokens_per_s_low": 0.8, "output_tokens_per_s_high": 1.25},
            **{"ttft_s_p50": 2, "ttft_s_p50_low": 1, "ttft_s_p50_high": 4, "tpot_s_p50": 1, "total_tokens_per_s": 2.5},
            **{"fixed_share": 1, "error_pct": 25},
            **{"speed_source": "calibrated", "source": "predicted", "how": "by hand"},
        }.items()
    )
    # A faster start makes the cell shorter.
    known(monkeypatch, error_pct=25.0, ttft_error_pct=100.0, around_s=(1.5, 0.25))
    faster = one(tmp_path, fixed(2, 3, 2), knobs={"block_size": 16, "max_num_seqs": 1, "max_model_len": 4096})
    assert (faster["start_s"], faster["stop_s"], faster["cell_s"]) == (1.5, 0.25, 25.75)


def test_engines_side_by_side_take_turns(tmp_path, monkeypatch):
    known(monkeypatch, error_pct=25.0, ttft_error_pct=100.0)
    knobs = {"block_size": 16, "max_num_seqs": 4, "max_model_len": 4096}
    # 23 requests: one of the two engines gets 12.
    two = one(tmp_path, fixed(23, 64, 32), engine="vllm-serve", knobs=knobs | {"data_parallel_size": 2})
    half = one(tmp_path, fixed(12, 64, 32), engine="vllm-serve", knobs=knobs)
    alike = ("wall_s", "ttft_s_p50", "tpot_s_p99", "bound_by", "max_num_seqs", "weights_share")
    assert [two[name] for name in alike] == [half[name] for name in alike]
    summed = ("num_blocks", "kv_cache_tokens", "gpus", "steps", "running_peak", "running_mean", "waiting_peak")
    assert [two[name] for name in summed] == pytest.approx([2 * half[name] for name in summed])
    assert two["output_tokens_per_s"] == pytest.approx(23 / 12 * half["output_tokens_per_s"])
    assert (half["error_pct"], two["error_pct"], two["num_requests"]) == (25, None, 23)
    users = one(tmp_path, fixed(8, 64, 1), engine="vllm-serve", knobs=knobs | {"data_parallel_size": 2, "users": 3})
    assert (users["running_peak"], users["wall_s"]) == (4, 2)


def test_without_a_calibration_the_band_is_that_of_public_runs_like_it_and_beyond_it_there_is_none(
    tmp_path, monkeypatch
):
    record = one(tmp_path)
    band = public_costs().bands["data_sheet"]
    errors = (record["error_pct"], record["ttft_error_pct"], record["band_group"])
    assert (record["speed_source"], *errors) == ("data sheet", band.error_pct, band.ttft_error_pct, band.group)
    assert f"the band is that of {band.runs} public runs: {band.group}" in record["how"]
    assert record["kv_error_pct"] == public_costs().kv_error_pct
    assert record["how"].startswith("uncalibrated: ")
    # No band exceeds what the data sheet allows.
    assert record["wall_s_high"] == pytest.approx((1 + band.error_pct / 100) * record["wall_s"])
    assert record["output_tokens_per_s"] < record["output_tokens_per_s_high"]
    # A step has twice as many sequences as the costs were fitted to.
    known(monkeypatch, error_pct=25.0, ttft_error_pct=100.0, covered={"sequences": 0.5})
    record = one(tmp_path, knobs={"block_size": 16, "max_num_seqs": 1})
    assert (record["error_pct"], record["ttft_error_pct"], record["wall_s_high"]) == (None, None, None)
    said = "by hand; beyond the calibration, so without its band: 1 sequences in a step, fitted up to 0.5"
    assert record["how"] == said


@pytest.mark.parametrize(
    ("knobs", "tokens"),
    [
        ({"max_num_batched_tokens": 4096, "max_num_seqs": 256}, 82_819),
        ({"max_num_batched_tokens": 8192, "max_num_seqs": 512, "kv_cache_dtype": "fp8"}, 130_986),
    ],
)
def test_the_band_of_kv_tokens_has_what_graphs_of_experts_take(knobs, tokens, tmp_path):
    # Public logs of gpt-oss-20b on an L4, vLLM 0.29.
    given = {"block_size": 16, "gpu_memory_utilization": 0.85, "max_model_len": 32768, **knobs}
    record = one(tmp_path, gpu="l4", model="gpt-oss-20b", knobs=given)
    assert record["kv_cache_tokens"] * (1 - record["kv_error_pct"] / 100) <= tokens <= record["kv_cache_tokens"]
    eager = one(tmp_path, gpu="l4", model="gpt-oss-20b", knobs=given | {"enforce_eager": True})
    assert eager["kv_error_pct"] == public_costs().kv_error_pct


def test_the_data_sheet_limits_what_is_predicted(tmp_path):
    # A long prompt takes arithmetic, of which 60 % are assumed; its many answers take reading, with 85 % and overhead.
    record = one(tmp_path, fixed(1, 8000, 400), knobs={"block_size": 16, "max_num_seqs": 1, "max_model_len": 8400})
    assert record["ttft_s_p50_low"] / record["ttft_s_p50"] == pytest.approx(0.6, abs=0.02)
    assert record["wall_s_low"] / record["wall_s"] > 0.64
    record = one(tmp_path, gpu="l40s", knobs={"block_size": 16, "max_num_seqs": 1})
    # Steps of Llama-3.1-8B read 15 GB: an L40S does at most 57.6 a second, whatever the error is said to be.
    assert record["output_tokens_per_s"] < record["output_tokens_per_s_high"] < 57.6
    assert record["output_tokens_per_s_high"] < 1.4 * record["output_tokens_per_s"]


@pytest.mark.parametrize(
    ("changes", "bound_by", "peak"),
    [
        ({"max_num_seqs": 16}, "sequences", 16),
        ({"max_num_seqs": 256}, "prompts", 24),
        # Less than a prompt in a step: the first request is gone after 32 more, when not all others have begun.
        ({"max_num_seqs": 32, "max_num_batched_tokens": 40}, "token_budget", None),
    ],
)
def test_what_keeps_more_from_running_at_once(tmp_path, changes, bound_by, peak):
    record = one(tmp_path, knobs={"block_size": 16} | changes)
    assert record["bound_by"] == bound_by
    assert record["running_peak"] == peak or (peak is None and record["running_peak"] < 24)


def test_blocks_bind_where_memory_is_short(tmp_path):
    record = one(tmp_path, fixed(300, 900, 900), gpu="l40s", knobs={"block_size": 16, "max_num_seqs": 256})
    assert record["bound_by"] == "kv_blocks"
    assert record["preemptions"] > 0
    assert record["recomputed_tokens"] >= 900 * record["preemptions"]
    assert record["blocks_peak"] == record["num_blocks"] - 1


def test_users_keep_as_many_requests_in_progress_and_wait_beyond_the_places(tmp_path, monkeypatch):
    users, slots = (
        one(tmp_path, engine="vllm-serve", knobs={"max_num_seqs": seqs} | load)
        for seqs, load in ((8, {"users": 4}), (4, {}))
    )
    assert [record["running_peak"] for record in (users, slots)] == [4, 4]
    assert users["steps"] == slots["steps"]
    # Only the first four are taken in before the first step.
    assert 0.95 * slots["wall_s"] < users["wall_s"] < slots["wall_s"]
    assert users["band_group"] == public_costs().bands["data_sheet"].group
    # A user has a place at once; of 24 requests that are sent together, most wait for one.
    assert 0 < users["ttft_s_p50"] < 0.1 * slots["ttft_s_p50"]
    # Steps take 1 s; each request has 32. Of 12 users 4 run, so a request waits for 8 others: two batches of 4.
    known(monkeypatch)
    knobs = {"max_num_seqs": 4, "users": 12, "max_num_batched_tokens": 1024}
    assert one(tmp_path, engine="vllm-serve", knobs=knobs)["ttft_s_p50"] == pytest.approx(2 * 32 + 1, abs=3)


BY_SMALL = {"speculative_method": "draft_model", "speculative_model": "smollm-135m", "num_speculative_tokens": 3}
BY_SMALL |= {"synthetic_acceptance_length": 2.5, "max_num_seqs": 4, "block_size": 16}


def test_drafts_save_steps_and_cost_passes_of_their_model(tmp_path, monkeypatch):
    # A step of 1 s. After the first token 31 are left, in ceil(31 / 2.5) = 13 steps for each of six groups of four.
    known(monkeypatch, error_pct=10.0)
    by = one(tmp_path, knobs=BY_SMALL)
    assert (by["steps"], by["output_tokens"], by["num_blocks"]) == (6 * 14, 24 * 32, None)
    assert by["tpot_s_p50"] == pytest.approx(13 * (1 + 3) / 31)  # each of three passes takes as long as a step
    assert (by["error_pct"], by["blocks_peak"]) == (None, None)
    # A layer takes 1 s: of the model 32, and of the draft model 30 in each of three passes.
    known(monkeypatch, costs=StepCosts(layers=1))
    assert one(tmp_path, knobs=BY_SMALL)["wall_s"] == pytest.approx(6 * 14 * (32 + 3 * 30))
    # A model that drafts for itself is always right: 4 tokens per step.
    itself = BY_SMALL | {"speculative_model": "llama-3.1-8b-instruct", "synthetic_acceptance_length": None}
    assert one(tmp_path, knobs=itself)["steps"] == 6 * 9
    # Both read the KV of each sequence in each pass: of 64 tokens, and of four more in each of eight steps. So do the
    # second and third pass of the step with the prompt.
    known(monkeypatch, costs=StepCosts(kv_bytes=1))
    every = one(tmp_path, knobs=BY_SMALL | {"synthetic_acceptance_length": 4.0})["wall_s"]
    read = sum(64 + 4 * step for step in range(8))
    assert every == pytest.approx(24 * (read * (131072 + 3 * 23040) + 2 * 63 * 23040), rel=1e-3)


CPU = {"block_size": 32, "cpu_kv_cache_gib": 1}


@pytest.mark.parametrize(
    ("place", "knobs", "unknown"),
    [
        ({"gpu": "cpu-all"}, CPU, "the rates of this device"),
        ({"gpu": "cpu-all"}, {"block_size": 32}, "without cpu_kv_cache_gib"),
        ({"gpu": "cpu-all"}, CPU | {"tensor_parallel_size": 2}, "tensor_parallel_size"),
        (
            {"gpu": "cpu-all", "engine": "vllm-serve"},
            CPU | {"max_model_len": 4096, "data_parallel_size": 2},
            "data_parallel_size",
        ),
        ({"model": "mixtral-8x7b", "engine": "vllm-serve"}, {"data_parallel_size": 8}, "share experts"),
        ({}, {"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({}, {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "decode_context_parallel_size"),
        ({}, {"speculative_method": "ngram", "num_speculative_tokens": 2}, "speculative decoding"),
        ({}, BY_SMALL | {"synthetic_acceptance_length": None}, "synthetic_acceptance_length sets it"),
        ({"model": "gpt-oss-20b"}, BY_SMALL, "several kinds"),
        ({"engine": "vllm-serve"}, {"users": 2, "request_rate_per_s": 1}, "users and a rate"),
        ({"engine": "openai"}, {"endpoint": "tgi"}, "no schedule"),
    ],
)
def test_what_is_not_predicted_says_why(tmp_path, place, knobs, unknown):
    record = one(tmp_path, **place, knobs=knobs)
    assert unknown in record["unknown"]
    assert record["output_tokens_per_s"] is None
    assert record["cell_s"] is None


def test_a_rate_that_is_searched_is_measured_alone_and_its_cache_is_predicted(tmp_path):
    searching = sweep(engine="vllm-serve", knobs={"find": "highest_rate"})
    (record,) = predict(tmp_path, sweeps=[searching], slo={"ttft_s": 4.0}).values()
    assert "find: highest_rate is searched" in record["unknown"]
    assert record["num_blocks"] > 1000


def test_without_rates_the_schedule_is_known(tmp_path):
    record = one(tmp_path, gpu="cpu-all", knobs={"block_size": 32, "max_num_seqs": 4, "cpu_kv_cache_gib": 8})
    assert (record["running_peak"], record["bound_by"]) == (4, "sequences")


def test_requests_that_are_too_long_are_not_predicted(tmp_path):
    drawn = {"median": 48, "sigma": 0.001, "minimum": 8, "maximum": 60}
    record = one(tmp_path, fixed(24, drawn, drawn, kind="synthetic"), knobs={"max_model_len": 80})
    assert re.search(r"9[678] tokens .* 80$", record["unknown"])


def test_arrivals_decide_on_each_device_by_itself(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{10 * i},50,20\n" for i in range(6)))
    workload = {"kind": "trace", "num_prompts": 6, "file": str(trace), "sha256": sha256_of(trace)}
    # An offline engine gets all requests at once.
    assert one(tmp_path, workload, knobs={"max_num_seqs": 4})["running_peak"] == 4
    record = one(tmp_path, workload, engine="vllm-serve", knobs={"max_num_seqs": 4})
    assert record["running_peak"] == 1
    assert 50 < record["wall_s"] < 51
    assert record["ttft_s_p99"] < 0.1


def test_continuous_batches_of_huggingface(tmp_path):
    record = one(tmp_path, engine="hf-continuous", knobs={"page_size": 32, "num_blocks": 128, "max_batch_tokens": 128})
    # Two prompts of 64 tokens fit into the first step; those that decode leave less for the next prompts.
    assert 12 + 31 < record["steps"] < 24 * 32
    assert (record["num_blocks"], record["kv_cache_tokens"], record["bound_by"]) == (128, 4096, "prompts")


DEMO = load_study(Path("config/studies/demo.yaml"))


@pytest.mark.parametrize("name", ["chat", "shared-prefix"])
def test_they_are_those_of_the_requests_that_are_measured(name):
    spec = DEMO.workloads[name]
    vocabulary = Vocabulary(np.arange(100, 4000), list, list)
    requests = make_requests(spec, vocabulary, 32)
    lengths, kind = lengths_of(spec, 32)
    assert lengths.prompt_tokens.tolist() == [len(r.prompt_token_ids) for r in requests]
    assert lengths.output_tokens.tolist() == [r.output_tokens for r in requests]
    shared = lengths.prefix_tokens is not None and lengths.prefix_tokens.tolist()
    assert shared == ([r.prefix_tokens for r in requests] if name == "shared-prefix" else False)
    assert kind == spec.kind


def test_texts_of_a_file_are_guessed_and_said_to_be(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("eight ch\nfive!\n")
    spec = PromptsWorkload(kind="prompts", num_prompts=2, file=path, sha256=sha256_of(path), output_tokens=3)
    lengths, kind = lengths_of(spec, 2)
    assert lengths.prompt_tokens.tolist() == [2, 2]
    assert kind == "prompts, a token for every 4 characters"
    with pytest.raises(WorkloadError, match="3 requests are needed"):
        lengths_of(spec, 3)
