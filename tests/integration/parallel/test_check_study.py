"""Settings are checked with the installed vLLM."""

from pathlib import Path

import pytest

from tests.unit.made_studies import fixed, write_study
from workflow_scripts.predict.check_study import check_cells, fault_lines, main
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

pytest.importorskip("vllm")

NGRAM = {"speculative_method": "ngram", "num_speculative_tokens": [0, 4], "prompt_lookup_max": 3}
DRAFTED = {"num_speculative_tokens": 3, "synthetic_acceptance_length": [1, 2.5, 4]}
DRAFT = {"speculative_method": "draft_model", "num_speculative_tokens": 3, "speculative_model": "smollm-135m"}


def sweep(name: str, engine: str = "vllm", gpu: str | list[str] = "cpu-all", **knobs: object) -> dict[str, object]:
    return {"name": name, "gpu": gpu, "engine": engine, "model": "llama-3.1-8b-instruct", "knobs": knobs}


# What the line of each sweep says.
REFUSED = {
    "on cpu-1core, cpu-all: max_num_seqs=16, max_model_len=200000: ": sweep(
        "long", gpu=["cpu-1core", "cpu-all"], max_model_len=[4096, 200000], max_num_seqs=16
    ),
    "tensor_parallel_size=5: ": sweep("ranks", tensor_parallel_size=[5, 8]),
    "quantization=awq: ": sweep("weights", quantization=["awq", "fp8"]),
    "attention_backend=FLASHY: ": sweep("backend", attention_backend="FLASHY"),
    "max_num_batched_tokens=512, enable_chunked_prefill=False: ": sweep(
        "whole-prompts", enable_chunked_prefill=False, max_num_batched_tokens=512
    ),
    "Target and draft model should have the same": sweep("vocabulary", **DRAFT, block_size=16),
}
TAKEN = [
    # The config classes of a CPU would refuse what a GPU takes.
    sweep("many", gpu="h200", max_num_seqs=8192),
    sweep("kv", gpu="h200", kv_cache_dtype=["fp8", "fp8_e4m3", "fp8_e5m2"], attention_backend="FLASHINFER"),
    sweep("ngram", gpu=["l40s", "cpu-all"], **NGRAM),
    sweep("eagle", speculative_method=["eagle", "eagle3"], speculative_model="smollm-135m", **DRAFTED),
    {**sweep("mtp", gpu="h200", speculative_method="mtp", **DRAFTED), "model": "deepseek-v3"},
    # Kernels refuse these, and what they refuse is an outcome.
    sweep("blocks", gpu=["h200", "cpu-all"], block_size=[4, 8, 64, 128]),
    # transformers says what it refuses when it starts.
    sweep("page", "hf-continuous", page_size=[2, 32], num_blocks=64, max_batch_tokens=256),
]


def test_what_an_engine_refuses_is_one_line_with_sweep_knob_and_its_words(tmp_path, capfd):
    study = write_study(tmp_path, *REFUSED.values(), *TAKEN, name="asked", workloads={"w": fixed(2, 8, 4)})
    assert main(["--study", str(study)]) == 2
    printed = capfd.readouterr()
    assert printed.err.count(f"kvsweep check-engines: {study}: ") == len(REFUSED)
    for words, refused in REFUSED.items():
        (line,) = (line for line in printed.err.splitlines() if f": sweep {refused['name']}: " in line)
        assert words in line
    assert "Valid options are: FLASH_ATTN" in printed.err  # in vLLM's own words


def test_the_engines_take_every_study_of_the_project():
    # Their cuts for a CPU ask for the same, which a CPU may refuse; other environments have a Python of their own.
    folder = Path("config/studies")
    every = (cell for path in sorted(folder.glob("*.yaml")) for cell in expand(load_study(path)))
    cells = [cell for cell in every if not cell.environment]
    assert fault_lines(folder, check_cells(cells)) == []
