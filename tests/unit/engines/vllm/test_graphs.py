"""The captured sizes against each version's own `_set_cudagraph_sizes`."""

import random
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from workflow_scripts.engines.vllm.memory import capture_sizes, decodes_as_one_graph

# max_num_seqs, max_num_batched_tokens, drafted tokens, Blackwell.
SETTINGS = ((1, 64, 0, False), (100, 100, 0, False), (300, 2048, 0, True), (1000, 8192, 0, True), (37, 500, 3, True))
# Number, largest and sum of the sizes, by each version's own function on 2026-11-30.
OWN = {
    "0.11.0": ((3, 4, 7), (15, 96, 631), (67, 512, 16647), (67, 512, 16647), (12, 72, 367)),
    "0.12.0": ((2, 2, 3), (15, 96, 631), (51, 512, 10503), (51, 512, 10503), (12, 72, 367)),
    "0.20.0": ((2, 2, 3), (15, 96, 631), (51, 512, 10503), (51, 512, 10503), (37, 288, 4791)),
    "0.25.1": ((2, 2, 3), (16, 100, 731), (51, 512, 10503), (51, 512, 10503), (37, 288, 4791)),
    "0.28.0": ((2, 2, 3), (16, 100, 731), (56, 592, 13303), (83, 1024, 35335), (37, 288, 4791)),
    "0.30.0": ((2, 2, 3), (16, 100, 731), (56, 592, 13303), (83, 1024, 35335), (38, 288, 4939)),
    "0.31.0": ((2, 2, 3), (16, 100, 731), (57, 592, 13603), (84, 1024, 36335), (38, 288, 4939)),
}


@pytest.mark.parametrize("version", OWN)
def test_the_captured_sizes_are_those_of_each_version(version):
    numbers = tuple(map(int, version.split(".")))
    for (*limits, drafted, blackwell), own in zip(SETTINGS, OWN[version], strict=True):
        sizes = capture_sizes(numbers, *limits, blackwell=blackwell, drafted=drafted)
        assert (len(sizes), max(sizes), sum(sizes)) == own


def test_the_captured_sizes_are_those_of_the_installed_version(monkeypatch):
    config = pytest.importorskip("vllm.config.vllm", reason="vLLM is not installed")
    installed = tuple(map(int, pytest.importorskip("vllm").__version__.split("+")[0].split(".")[:3]))
    rng = random.Random(74)
    for _ in range(400):
        seqs, drafted, blackwell = (
            rng.randint(1, rng.choice([20, 600, 2000])),
            rng.choice([0, 0, 1, 5]),
            rng.random() < 0.5,
        )
        tokens = max(seqs, rng.choice([rng.randint(1, 700), 2048, 8192]))
        compilation = MagicMock(max_cudagraph_capture_size=None, cudagraph_capture_sizes=None, cudagraph_mode=2)
        own = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=False),
            compilation_config=compilation,
            scheduler_config=SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=tokens),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            speculative_config=None,
            performance_mode="balanced",
            num_speculative_tokens=drafted,
            uniform_decode_query_len=1 + drafted,
        )
        platform = "vllm.platforms.current_platform.is_device_capability_family"
        monkeypatch.setattr(platform, lambda family, is_one=blackwell: is_one)
        config.VllmConfig._set_cudagraph_sizes(own)
        sizes = capture_sizes(installed, seqs, tokens, blackwell=blackwell, drafted=drafted)
        assert sizes == compilation.cudagraph_capture_sizes


@pytest.mark.parametrize(("version", "seqs"), [((0, 30), 96), ((0, 31), 100)])
def test_the_last_of_100_sequences_are_captured_since_0_31(version, seqs):
    assert decodes_as_one_graph(capture_sizes(version, 100, 8192, blackwell=False), 100) == seqs
    assert decodes_as_one_graph(capture_sizes(version, 1024, 8192, blackwell=False), 1024) == 512
