import shlex
from pathlib import Path

import pytest
import yaml

from workflow_scripts.engines.vllm_engines import VllmKnobs
from workflow_scripts.study.definition import ResolvedModel
from workflow_scripts.study.serve_command import ServeSettings, serve_settings

HUB = ResolvedModel(
    name="model", hub_repo="org/model", revision="0" * 40, dtype="bfloat16", load_format="hub", config_sha256=""
)
DUMMY = ResolvedModel(name="tiny", hub_repo=None, revision=None, dtype="float32", load_format="dummy", config_sha256="")
FOLDER = Path("results/demo/prepared/models/tiny-1234")

ALL_KNOBS = VllmKnobs(
    block_size=32,
    max_num_seqs=64,
    max_num_batched_tokens=4096,
    max_model_len=2048,
    gpu_memory_utilization=0.85,
    enable_prefix_caching=False,
    enable_chunked_prefill=True,
    kv_cache_dtype="fp8",
    quantization="awq",
    tensor_parallel_size=2,
    pipeline_parallel_size=3,
    enable_expert_parallel=True,
    enforce_eager=True,
    attention_backend="FLASH_ATTN",
    cpu_kv_cache_gib=4,
    num_gpu_blocks_override=100,
    speculative_method="ngram",
    num_speculative_tokens=4,
    prompt_lookup_max=3,
    prompt_lookup_min=2,
)
# What no other can be set together with n-grams.
BY_DRAFT_MODEL = VllmKnobs(speculative_method="draft_model", num_speculative_tokens=2, speculative_model="tiny")
ALL_COMMAND = (
    "VLLM_CPU_KVCACHE_SPACE=4 vllm serve org/model --revision 0000000000000000000000000000000000000000"
    " --dtype bfloat16 --block-size 32 --max-num-seqs 64 --max-num-batched-tokens 4096 --max-model-len 2048"
    " --gpu-memory-utilization 0.85 --no-enable-prefix-caching --enable-chunked-prefill --kv-cache-dtype fp8"
    " --quantization awq --tensor-parallel-size 2 --pipeline-parallel-size 3 --enable-expert-parallel --enforce-eager"
    " --attention-backend FLASH_ATTN --num-gpu-blocks-override 100 --speculative-config"
    """ '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}'"""
)


def test_every_knob_on_the_command_line():
    assert {*ALL_KNOBS.set_values(), *BY_DRAFT_MODEL.set_values()} == set(VllmKnobs.model_fields)
    assert serve_settings(HUB, FOLDER, ALL_KNOBS, {}).command() == ALL_COMMAND


def test_every_knob_in_the_file():
    settings = serve_settings(HUB, FOLDER, ALL_KNOBS, {})
    assert settings.config().startswith("# environment: VLLM_CPU_KVCACHE_SPACE=4\nmodel: org/model\nrevision: ")
    positive = {name: value for name, value in settings.arguments.items() if name != "enable-prefix-caching"}
    assert yaml.safe_load(settings.config()) == {"model": "org/model", "no-enable-prefix-caching": True} | positive


def test_a_draft_model_is_named_by_its_repository_and_commit_or_by_its_folder():
    hub = serve_settings(HUB, FOLDER, BY_DRAFT_MODEL, {}, (HUB.model_copy(update={"hub_repo": "org/draft"}), FOLDER))
    speculation = {"method": "draft_model", "num_speculative_tokens": 2, "model": "org/draft", "revision": "0" * 40}
    assert hub.arguments["speculative-config"] == speculation
    dummy = serve_settings(DUMMY, FOLDER, BY_DRAFT_MODEL, {}, (DUMMY, Path("draft")))
    assert dummy.arguments["speculative-config"] == {k: v for k, v in speculation.items() if k != "revision"} | {
        "model": "draft"
    }


def test_no_token_drafted_is_no_speculative_decoding():
    off = VllmKnobs(speculative_method="ngram", num_speculative_tokens=0, prompt_lookup_max=3)
    assert off.slug() == "specngram-draft0-lookup3"
    assert "--speculative-config" not in serve_settings(HUB, FOLDER, off, {}).command()


def test_remote_code_is_served_only_where_it_was_measured():
    assert "--trust-remote-code" not in serve_settings(HUB, FOLDER, VllmKnobs(), {}).command()
    trusted = serve_settings(HUB.model_copy(update={"trust_remote_code": True}), FOLDER, VllmKnobs(), {})
    assert trusted.command() == (f"vllm serve org/model --revision {'0' * 40} --trust-remote-code --dtype bfloat16")


def test_a_model_with_random_weights_is_served_from_its_folder():
    settings = serve_settings(DUMMY, FOLDER, VllmKnobs(), {})
    assert settings == ServeSettings(str(FOLDER), {"load-format": "dummy", "dtype": "float32"}, {})
    assert settings.command() == f"vllm serve {FOLDER} --load-format dummy --dtype float32"
    assert settings.config() == f"model: {FOLDER}\nload-format: dummy\ndtype: float32\n"


def test_what_took_effect_is_written_out_but_what_was_set_goes_before():
    settings = serve_settings(HUB, FOLDER, VllmKnobs(max_num_seqs=8), {"max_num_seqs": 256, "max_model_len": 512})
    assert settings.arguments["max-num-seqs"] == 8
    assert settings.arguments["max-model-len"] == 512
    assert list(settings.arguments)[-2:] == ["max-num-seqs", "max-model-len"]


@pytest.mark.parametrize("name", ["a folder/model", "it's"])
def test_the_command_survives_a_shell(name):
    command = serve_settings(DUMMY, Path(name), VllmKnobs(block_size=16), {}).command()
    options = "--load-format dummy --dtype float32 --block-size 16"
    assert shlex.split(command) == ["vllm", "serve", name, *options.split()]
