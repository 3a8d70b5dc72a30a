"""Where prompt tokens go: public cases, the exact sum, and the command. vLLM's own classes: tests/integration."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.predict.planned import sweep, write_study
from tests.unit.predict.test_scheduler import SETTINGS
from workflow_scripts.common.files import write_jsonl
from workflow_scripts.predict.hits import main
from workflow_scripts.predict.prefix_hits import OF_PROMPT, curve, knee, prefix_hits
from workflow_scripts.predict.schedule import RequestLengths

TRACE = ["--trace", "tests/fixtures/traces/mooncake.jsonl", "--hash-block-tokens", "32", "--json"]
CACHE = ["--model", "llama-3.1-8b-instruct", "--gpu", "h100-sxm", "--block-size", "16", "--max-model-len", "400"]
FIXED = ["--study", "config/studies/prefix_caching.yaml", "--workload", "nothing-shared", "--max-model-len", "4096"]
SHARED = {"kind": "shared_prefix", "num_prompts": 24, "prefix_tokens": 100, "prompt_tokens": 30, "output_tokens": 8}


def test_evicted_blocks_are_found_in_a_larger_cache():
    texts = np.array([0, 1, 2, 0, 1, 2])
    prompts = np.full(6, 13)
    requests = RequestLengths(prompts, np.full(6, 2), None, texts, np.full(6, 12))
    settings = replace(SETTINGS, block_size=4, num_blocks=9, max_num_seqs=1)
    hits = prefix_hits(requests, settings)
    assert sum(hits.tokens[name] for name in OF_PROMPT).tolist() == prompts.tolist()
    assert hits.total("evicted") == 36 - hits.total("found") > 0
    freed, evicted, asked, _ = hits.evictions.T
    assert ((freed <= evicted) & (evicted <= asked)).all()
    points = curve(requests, settings)
    assert dict(points)[9] == hits.total("found")
    assert points[-1] == (max(blocks for blocks, _ in points), 36)
    assert dict(points)[knee(points)] >= 0.95 * 36


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(list(words)) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_command_adds_up_the_prompts_of_a_trace(capsys, tmp_path):
    told = said(capsys, *CACHE, "--num-gpu-blocks-override", "30", *TRACE, "--out", str(tmp_path))
    assert told["prompt_tokens"] == sum(told["of_prompts"].values()) == 4431
    assert told["of_prompts"]["found"] < told["ceiling"] == max(point["found"] for point in told["curve"])
    assert told["best_change"]["change"] == "num_blocks"
    assert told["evicted"]["unused_until_evicted_s_p50"] <= told["evicted"]["unused_until_asked_for_s_p50"]
    assert {path.name for path in tmp_path.iterdir()} >= {"hits.svg", "hits.png"}
    assert main([*CACHE, "--num-gpu-blocks-override", "30", *TRACE[:-1]]) == 0
    assert "4,431" in capsys.readouterr().out


def test_a_longer_shared_beginning_or_smaller_blocks_find_what_is_shorter_than_a_block(capsys, tmp_path):
    study = write_study(tmp_path, [sweep(workload="shared")], workloads={"shared": SHARED})
    large = [*CACHE[:4], "--block-size", "64", "--max-model-len", "400", "--json"]
    told = said(capsys, "--study", str(study), "--workload", "shared", *large)
    assert told["of_prompts"]["found"] == 23 * 64
    assert told["of_prompts"]["shorter_than_block"] == 23 * 36
    found = {one["change"]: one["found"] for one in told["changes"] if one.get("to", 16) == 16}
    # With 28 tokens more in the beginning, 128 are found of each but the first prompt, instead of 100.
    assert found == {"shared_prefix_tokens": 23 * 128 - 24 * 28, "block_size": 23 * 96}


def test_a_measured_cell_tells_what_it_found(capsys, tmp_path):
    study = write_study(tmp_path, [sweep(workload="shared")], workloads={"shared": SHARED})
    cell = "h200/vllm/llama-3.1-8b-instruct/shared/bs16-seqs16-len4096"
    path = tmp_path / "results/planned/cells" / cell / "raw/requests.jsonl"
    path.parent.mkdir(parents=True)
    write_jsonl(path, [{"repeat": repeat, "cached_prompt_tokens": 96} for repeat in (0, 1) for _ in range(23)])
    asked = ["--study", str(study), "--results", str(tmp_path / "results"), "--json", "--cell"]
    assert said(capsys, *asked, cell)["measured_found"] == 23 * 96
    told = said(capsys, *asked[:2], "--json", "--cell", str(path))
    assert told["measured_found"] == told["of_prompts"]["found"] == 23 * 96
    large = said(capsys, *asked[:2], "--json", "--cell", cell, "--out", str(tmp_path / "figure"))
    assert (tmp_path / "figure/hits.svg").is_file()
    assert large["measured_found"] is None  # there are no results in the working folder
    write_jsonl(path, [{"request_id": "0"}])
    assert main([*asked, cell]) == 2
    assert "line 1" in capsys.readouterr().err


def test_offloading_pays_from_the_length_at_which_loading_is_faster(capsys):
    asked = [*CACHE[:-1], "8192", "--num-gpu-blocks-override", "600", *TRACE, "--num-prompts", "4", "--link-gb-per-s"]
    per_block = 16 * 131_072
    units = {}
    for rate in ("0.001", "50", "100", "100000"):
        of = said(capsys, *asked, rate)["offloading"]
        assert of["load_s"] == pytest.approx(of["tokens"] / 16 * per_block / (float(rate) * 1e9))
        units[rate] = of["pays_from_tokens"]
    assert units["0.001"] is None
    assert 16 <= units["100000"] <= units["100"] < units["50"] < 8192
    told = said(capsys, *asked[:-1])["offloading"]
    assert (told["link"], told["link_gb_per_s"]) == ("pcie5", 52.5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*CACHE, "--json"], "give one of"),
        ([*TRACE, "--gpu", "h200", "--block-size", "16"], "--model"),
        ([*CACHE, *TRACE, "--max-total-tokens", "1"], "--max-total-tokens 1"),
        ([*CACHE[:4], "--block-size", "16", *FIXED, "--out", "results/none"], "no curve"),
        ([*CACHE, *TRACE, "--no-enable-prefix-caching"], "prefix caching on"),
        ([*CACHE, "--trace", "tests/fixtures/prompts/chats.jsonl"], "line 1"),
        ([*CACHE, *TRACE, "--num-gpu-blocks-override", "3"], "3 blocks"),
    ],
)
def test_bad_input_is_refused(capsys, words, told):
    assert main(words) == 2
    assert told in capsys.readouterr().err
