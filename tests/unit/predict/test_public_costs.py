"""What is added to the costs of one calibrated GPU: old hosts, links between ranks, servers."""

import pytest

from tests.unit.predict.planned import study, sweep
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.engines.vllm.memory import CapacityError
from workflow_scripts.predict.predictions import at_version, predict_cells
from workflow_scripts.predict.public_costs import public_costs
from workflow_scripts.study.grid import expand

ONE = {"one": {"kind": "fixed", "num_prompts": 1, "prompt_tokens": 16, "output_tokens": 64}}


def record_of(tmp_path, version=None, engine="vllm", gpu="h100-sxm", model="llama-3.1-8b-instruct", **knobs):
    knobs = {"block_size": 16, "max_num_seqs": 64, "max_model_len": 1024, **knobs}
    planned = study(
        tmp_path, workloads=ONE, sweeps=[sweep(gpu=gpu, engine=engine, model=model, workload="one", knobs=knobs)]
    )
    (record,) = predict_cells(planned, at_version(expand(planned), version))
    return record


def tpot_ms(record):
    return 1e3 * record.tpot_s_p50.value


def test_an_old_version_waits_for_its_host_in_every_step(tmp_path):
    now = record_of(tmp_path)
    assert "public runs" not in now.how
    old = record_of(tmp_path, "0.10.1")
    assert tpot_ms(old) - tpot_ms(now) == pytest.approx(2.97, abs=0.05)
    assert "plans no step ahead" in old.how
    assert tpot_ms(record_of(tmp_path, "0.15.1")) == tpot_ms(now)
    with pytest.raises(CapacityError, match="not a version"):
        record_of(tmp_path, "newest")


def test_ranks_sum_their_results_over_the_link_of_their_gpus(tmp_path):
    by_ranks = {ranks: record_of(tmp_path, tensor_parallel_size=ranks) for ranks in (1, 2, 4, 8)}
    assert sorted(by_ranks, key=lambda ranks: tpot_ms(by_ranks[ranks])) == [4, 8, 2, 1]
    assert "all-reduces of 8 ranks over nvlink4" in by_ranks[8].how
    # Pairs of cards without NVLink take 64 sums of 41 us each.
    cards, modules = (record_of(tmp_path, gpu=f"a100-{form}-80gb", tensor_parallel_size=2) for form in ("pcie", "sxm"))
    assert tpot_ms(cards) - tpot_ms(modules) == pytest.approx(64 * 0.041, rel=0.2)
    of_two_nodes = record_of(tmp_path, tensor_parallel_size=16)
    assert of_two_nodes.wall_s is not None
    assert "network between nodes is not modelled" in of_two_nodes.how


def test_a_server_adds_to_each_step_and_to_the_first_token(tmp_path):
    engine, server = record_of(tmp_path), record_of(tmp_path, engine="vllm-serve")
    assert tpot_ms(server) - tpot_ms(engine) == pytest.approx(0.23, abs=0.01)
    assert 1e3 * (server.ttft_s_p50.value - engine.ttft_s_p50.value) == pytest.approx(5.2, abs=0.3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "mi300x"}, "speed is not predicted on AMD GPUs"),
        ({"version": "0.6.3"}, "nothing is predicted for vLLM before 0.8"),
    ],
)
def test_no_speed_of_an_amd_gpu_and_nothing_of_the_old_core(tmp_path, changes, words):
    record = record_of(tmp_path, **changes)
    assert record.unknown == words
    assert (record.num_blocks is None) == ("version" in changes)
    assert record.wall_s is None


def test_every_link_of_the_catalogue_has_a_rate():
    links = {gpu.link for gpu in load_gpus().values()} - {None}
    assert links == public_costs().links.keys()
    assert public_costs().links["nvlink4"].latency_of(3) == public_costs().links["nvlink4"].latency_s[4]


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, None),
        ({"engine": "vllm-serve"}, "calibrated"),
        ({"version": "0.20.0"}, "calibrated"),
        ({"model": "qwen2-7b"}, "other_model"),
        ({"tensor_parallel_size": 4}, "ranks"),
        ({"gpu": "a100-sxm-80gb", "tensor_parallel_size": 4}, "data_sheet"),
        ({"version": "0.11.0", "model": "qwen2-7b"}, "synchronous"),
    ],
)
def test_every_prediction_has_the_band_of_its_group_and_says_so(tmp_path, changes, group):
    record = record_of(tmp_path, **changes)
    if group is None:  # its own calibration's
        assert (record.band_group, record.error_pct > 10) == (None, True)
    else:
        band = public_costs().bands[group]
        assert (record.band_group, record.error_pct) == (band.group, band.error_pct)
        assert record.tpot_s_p50.high == pytest.approx((1 + band.tpot_error_pct / 100) * record.tpot_s_p50.value)
        assert f"public runs: {band.group}" in record.how
    assert record.kv_error_pct == public_costs().kv_error_pct
