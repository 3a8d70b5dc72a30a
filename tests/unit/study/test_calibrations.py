"""Which cells share a calibration, what it measures, and places of a study's results."""

import pytest

from tests.unit.predict.planned import study, sweep
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.faults import InputError
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.study.calibrations import (
    PROMPT_TOKENS,
    calibrations_of,
    identity,
    points_for,
    sustained_tokens,
)
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import usable


@pytest.mark.parametrize(
    "path", [None, "", "-x", "a{b}", "it's", "a\\b", "$(touch x)", "`touch x`", "a\nb", "a\x1b[2J"]
)
def test_a_path_that_snakemake_does_not_pass_on_as_it_is_is_refused(path):
    with pytest.raises(InputError, match=r"^results: .* cannot be used; allowed: a path of printable characters"):
        usable(path, "results")


def test_other_signs_of_a_shell_are_allowed():
    assert str(usable('my "own" é results;*?[a]&#~', "results")) == 'my "own" é results;*?[a]&#~'


def test_cells_that_differ_in_more_than_kernels_share_a_calibration(tmp_path):
    planned = study(
        tmp_path,
        sweeps=[
            sweep(knobs={"block_size": [16, 32], "max_num_seqs": [4, 64]}),
            sweep(name="eager", knobs={"enforce_eager": True, "max_num_seqs": 8}),
            sweep(name="ranks", knobs={"tensor_parallel_size": 2}),
            sweep(name="drafts", knobs={"speculative_method": "ngram", "num_speculative_tokens": 2}),
            sweep(name="hf", engine="hf-static", knobs={"batch_size": [2, 4], "cache_implementation": "static"}),
            sweep(name="served", engine="vllm-serve", knobs={"request_rate_per_s": [2.0, 4.0]}),
            sweep(name="used", engine="vllm-serve", knobs={"users": 4, "enforce_eager": True}),
        ],
    )
    found = calibrations_of(planned, expand(planned))
    model = "llama-3.1-8b-instruct"
    assert list(found) == [
        f"h200/vllm/{model}/default",
        f"h200/vllm/{model}/eager1",
        f"h200/hf-static/{model}/cachestatic",
        f"h200/vllm-serve/{model}/default",
    ]
    many = found[f"h200/vllm/{model}/default"]
    # The engine starts with the settings that allow most, but 24 requests are all that ever run.
    assert (many.cell.knobs.max_num_seqs, many.sequences, many.tokens) == (64, 24, 64 + 32)


def test_the_engine_starts_with_a_block_size_that_it_accepts(tmp_path):
    planned = study(tmp_path, sweeps=[sweep(knobs={"block_size": [8, 32, 16], "max_num_seqs": [4, 64]})])
    (calibration,) = calibrations_of(planned, expand(planned)).values()
    assert (calibration.cell.knobs.block_size, calibration.cell.knobs.max_num_seqs) == (32, 64)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("sequences", "tokens"), [(1, 20), (16, 512), (256, 4096)])
def test_points_keep_to_what_the_engine_allows(kind, sequences, tokens):
    points = points_for(sequences, tokens, kind, 60_000)
    assert points == points_for(sequences, tokens, kind, 60_000)
    assert all(prompt + output <= max(tokens, 14) + 10 for point in points for prompt, output in point)
    assert {1, sequences} <= {len(point) for point in points}
    assert any(len(point) > sequences for point in points)
    one_each = max(sum(prompt for prompt, _ in point) for point in points)
    assert one_each <= (max(3 * PROMPT_TOKENS, 16 * sequences) if kind == "cpu" else 80_000)


def test_cards_of_one_type_and_cpus_with_other_cores_are_different_devices():
    card = {"name": "H200", "uuid": "GPU-1", "driver_version": "1", "power_limit_w": 700}
    assert identity(card) != identity({**card, "uuid": "GPU-2"})
    assert identity(card) == identity({**card, "power_limit_w": 600})
    assert identity({"processor": "x", "cores": [0]}) != identity({"processor": "x", "cores": [0, 1]})


def test_a_gpus_series_reads_much_kv_and_has_prompts_beyond_the_captured_sizes():
    facts = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    # 0.7 times 16 GB of weights at 131 kB per token; on a card with little more than the weights, what fits.
    sustained = sustained_tokens(facts, 0.9 * 141e9)
    assert sustained == pytest.approx(85_800, rel=0.01)
    assert sustained_tokens(facts, 18e9) == pytest.approx(0.8 * (18e9 - facts.weight_bytes) / 131_072, abs=1)
    points = points_for(256, 4096, "cuda", sustained)
    most = max(sum(prompt + output for prompt, output in point) for point in points if len(set(point)) == 1)
    assert most == pytest.approx(sustained, rel=0.01)
    singles = [point[0][0] for point in points if len(point) == 1]
    assert sum(prompt > 512 for prompt in singles) == 3
    few = points_for(4, 4096, "cuda", sustained)
    assert max(sum(prompt + output for prompt, output in point) for point in few) == pytest.approx(4 * 4096, rel=0.1)
