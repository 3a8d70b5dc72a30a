"""Whether a running server is as fast as the study measured; the load itself is sent in tests/integration."""

import numpy as np
import pandas as pd
import pytest

from tests.unit.deploy.promises import promise
from tests.unit.questions.parsed_tables import served
from workflow_scripts.common.files import write_json
from workflow_scripts.questions.serving.check_server import (
    AS_MEASURED,
    client_faults,
    compare_latencies,
    differing_settings,
    first_requests,
    main,
    of_study,
    verdict_of,
)
from workflow_scripts.statistics.comparisons import BETWEEN_STARTS, NOT_DECIDED, SLOWER
from workflow_scripts.statistics.further_starts import AnotherStart

CELL = "h200/vllm-serve/m/chat/rate2"


def test_without_a_promise_it_says_how_one_is_made(tmp_path, capsys):
    words = ["--study", "config/studies/tiny/highest_load.yaml", "--results", str(tmp_path), "--url", "http://x"]
    assert main(words) == 2
    assert "promise.json: the study promises nothing yet; `snakemake export`" in capsys.readouterr().err


def expected(sd: float, value: float = 0.1) -> AnotherStart:
    """What one more start will measure, if that is known exactly but for a standard deviation of its logarithm."""
    return AnotherStart(np.log([value]), np.array([sd**2]), np.array([np.inf]), BETWEEN_STARTS)


@pytest.mark.parametrize(
    ("ratio", "sd", "verdict"),
    [
        (1.0, 0.01, AS_MEASURED),
        (0.5, 0.01, AS_MEASURED),  # faster is not slower
        (1.1, 0.01, SLOWER),
        (1.5, 0.01, SLOWER),
        (1.0, 0.2, NOT_DECIDED),  # it may be slower by more than the margin
        (1.1, 0.2, NOT_DECIDED),
        (0.7, 0.2, AS_MEASURED),
        (1.0, float("nan"), NOT_DECIDED),
    ],
)
def test_a_latency_is_slower_or_as_measured_only_if_that_is_shown(ratio, sd, verdict):
    (found,) = compare_latencies({"ttft_s_p50": expected(sd)}, {"ttft_s_p50": 0.1 * ratio}, margin_pct=15)
    assert found.verdict == verdict
    assert (found.study_s, found.server_s) == pytest.approx((0.1, 0.1 * ratio))
    if not np.isnan(sd):
        assert found.low < ratio < found.high


def test_a_server_is_slower_in_one_latency_and_as_measured_in_all():
    study = {"ttft_s_p50": expected(0.01), "tpot_s_p50": expected(0.01)}
    one, both = ({"ttft_s_p50": 0.1, "tpot_s_p50": other} for other in (0.2, 0.1))
    assert verdict_of(compare_latencies(study, one, 15)) == SLOWER
    assert verdict_of(compare_latencies(study, both, 15)) == AS_MEASURED
    unknown = {**study, "e2e_s_p50": expected(0.5)}
    assert verdict_of(compare_latencies(unknown, {**both, "e2e_s_p50": 0.1}, 15)) == NOT_DECIDED


def test_more_latencies_make_a_verdict_of_slower_no_more_likely():
    """With one latency the limit is 1.96 standard deviations, with three it is 2.39."""
    names = ("ttft_s_p50", "tpot_s_p50", "e2e_s_p50")
    server = dict.fromkeys(names, 0.1 * np.exp(0.022))
    alone = compare_latencies({names[0]: expected(0.01)}, server, 1)
    among = compare_latencies({name: expected(0.01) for name in names}, server, 1)
    assert (alone[0].verdict, among[0].verdict) == (SLOWER, NOT_DECIDED)


def requests(ttft_s: float, start: int = 1, repeat: int = 0) -> pd.DataFrame:
    """Ten requests, one every half second, with 5 tokens each of 10 ms."""
    first = 0.5 * np.arange(10) + ttft_s
    of = {"cell_id": CELL, "start": start, "repeat": repeat}
    return served(0.5 * np.arange(10), first, first + 0.04, outputs=5, **of)


def test_the_first_seconds_are_those_of_the_first_pass():
    both = pd.concat([requests(0.1, repeat=1), requests(0.1).iloc[::-1]])
    assert first_requests(both, 2) == ["0", "1", "2", "3", "4"]
    assert len(first_requests(both, 60)) == 10


def test_the_study_says_what_the_same_requests_took():
    parts = [requests(0.1 * factor, start) for start, factor in enumerate((1.0, 1.02, 0.98), 1)]
    for part in parts:  # what is not sent again does not count
        part.loc[part["request_id"].isin(["8", "9"]), ["first_token_s", "last_token_s"]] += 50
    cells = pd.DataFrame({"start": [1, 2, 3], "round": [1, 2, 3], "repeat": 0})
    cells = cells.assign(gpu="h200", cell_id=CELL, device_uuid="u")
    found = of_study(cells, pd.concat(parts), [str(i) for i in range(8)])
    assert set(found) == {"ttft_s_p50", "tpot_s_p50", "e2e_s_p50"}
    ttft = found["ttft_s_p50"]
    assert np.exp(ttft.mean[0]) == pytest.approx(0.1, rel=0.01)
    assert ttft.scope == BETWEEN_STARTS
    # Standard deviation 2 %, of a further start and of the mean of three: 4.30 times 2.3 %.
    assert ttft.half()[0] == pytest.approx(0.0994, rel=0.02)


def test_a_late_or_busy_client_decides_nothing():
    assert list(client_faults({"client_lag_s_p99": 0.005, "ttft_s_p50": 0.01}, 0.5)) == []
    late, busy = client_faults({"client_lag_s_p99": 0.05, "ttft_s_p50": 0.1}, 0.95)
    assert "0.05 s late" in late
    assert "0.95 cores" in busy


def test_settings_that_differ_are_listed():
    metrics = {"vllm:cache_config_info{block_size=32,cache_dtype=auto,num_gpu_blocks=1000}": 1.0}
    models = [{"id": "other", "max_model_len": 99}, {"id": "llama-3.1-8b-instruct", "max_model_len": 2048}]
    of = promise(effective={"block_size": 16, "num_gpu_blocks": 1000, "max_model_len": 4096})
    assert differing_settings(of, models, metrics, "llama-3.1-8b-instruct") == [
        "max_model_len: 2048 here, 4096 in the study",
        "block_size: 32 here, 16 in the study",
    ]
    assert differing_settings(of, models, {}, "other")[0].startswith("model: other")


def test_a_promise_of_the_offline_engine_cannot_be_checked(tmp_path, capsys):
    write_json(tmp_path / "demo/deploy/promise.json", promise(server=False).model_dump(mode="json"))
    words = ["--study", "config/studies/demo.yaml", "--results", str(tmp_path), "--url", "http://localhost:1"]
    assert main(words) == 2
    assert "without a server" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--seconds", "61"])
    assert "61 is more" in capsys.readouterr().err
