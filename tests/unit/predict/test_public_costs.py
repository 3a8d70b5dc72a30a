"""What is added to the costs of one calibrated GPU: links between ranks and servers."""

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


def test_a_version_decides_how_large_a_step_is(tmp_path):
    old, now = record_of(tmp_path, "0.6.3"), record_of(tmp_path)
    # The old core takes whole prompts, and as many tokens as the longest request has, but at least 2,048.
    assert (old.max_num_batched_tokens, now.max_num_batched_tokens) == (2048, 16384)
    with pytest.raises(CapacityError, match="not a version"):
        record_of(tmp_path, "newest")


def test_ranks_sum_their_results_over_the_link_of_their_gpus(tmp_path):
    by_ranks = {ranks: record_of(tmp_path, tensor_parallel_size=ranks) for ranks in (1, 2, 4, 8)}
    assert sorted(by_ranks, key=lambda ranks: tpot_ms(by_ranks[ranks])) == [4, 8, 2, 1]
    assert "all-reduces of 8 ranks over nvlink4" in by_ranks[8].how
    # Pairs of cards without NVLink take 64 sums of 41 us each.
    cards, modules = (record_of(tmp_path, gpu=f"a100-{form}-80gb", tensor_parallel_size=2) for form in ("pcie", "sxm"))
    assert tpot_ms(cards) - tpot_ms(modules) == pytest.approx(64 * 0.041, rel=0.2)
    assert "network between nodes is not modelled" in record_of(tmp_path, tensor_parallel_size=16).how


def test_a_server_adds_to_each_step_and_to_the_first_token(tmp_path):
    engine, server = record_of(tmp_path), record_of(tmp_path, engine="vllm-serve")
    assert tpot_ms(server) - tpot_ms(engine) == pytest.approx(0.23, abs=0.01)
    assert 1e3 * (server.ttft_s_p50.value - engine.ttft_s_p50.value) == pytest.approx(5.2, abs=0.3)


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
        ({"version": "0.13.0", "model": "qwen2-7b"}, "older"),
        ({"version": "0.6.3", "gpu": "mi300x"}, "amd"),
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
