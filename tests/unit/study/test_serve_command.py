from pathlib import Path

import pytest

from tests.unit.engines.test_knobs import LOOKUP, SIZES, SYNTHETIC, VLLM
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.study.definition import ResolvedModel
from workflow_scripts.study.serve_command import PromiseError, ServeSettings, serve_settings

HUB = ResolvedModel(
    name="model", hub_repo="org/model", revision="0" * 40, dtype="bfloat16", load_format="hub", config_sha256=""
)
DUMMY = ResolvedModel(name="tiny", hub_repo=None, revision=None, dtype="float32", load_format="dummy", config_sha256="")
FOLDER = Path("results/demo/prepared/models/tiny-1234")

OF_NGRAMS = {name: value for name, value in VLLM.items() if name != "speculative_model"} | LOOKUP
OTHERS = {"watermark": 0.2, "cudagraph_capture_sizes": [1, 2], "scheduling_policy": "priority"}
MORE = SIZES | {
    "engine_args": OTHERS,
    "data_parallel_size": 2,
    "enable_expert_parallel": True,
    "max_num_batched_tokens": 4096,
}
ALL_KNOBS = VllmKnobs.model_validate(OF_NGRAMS | MORE)
# What no other can be set together with n-grams.
BY_DRAFT_MODEL = VllmKnobs(speculative_method="draft_model", num_speculative_tokens=2, speculative_model="tiny")


def test_every_knob_is_among_those_that_vllms_parser_reads_back():
    assert {*ALL_KNOBS.set_values(), *BY_DRAFT_MODEL.set_values(), *SYNTHETIC} == set(VllmKnobs.model_fields)


def test_a_draft_model_is_named_by_its_repository_or_its_folder_and_no_draft_is_none():
    hub = serve_settings(HUB, FOLDER, BY_DRAFT_MODEL, {}, (HUB.model_copy(update={"hub_repo": "org/draft"}), FOLDER))
    speculation = {"method": "draft_model", "num_speculative_tokens": 2, "model": "org/draft", "revision": "0" * 40}
    assert hub.arguments["speculative-config"] == speculation
    dummy = serve_settings(DUMMY, FOLDER, BY_DRAFT_MODEL, {}, (DUMMY, Path("draft")))
    del speculation["revision"]
    assert dummy.arguments["speculative-config"] == speculation | {"model": "draft"}
    # No token drafted is no speculative decoding.
    off = VllmKnobs(speculative_method="ngram", num_speculative_tokens=0, prompt_lookup_max=3)
    assert off.slug() == "specngram-draft0-lookup3"
    assert "--speculative-config" not in serve_settings(HUB, FOLDER, off, {}).command()


def test_drafts_that_are_accepted_at_random_are_served_to_nobody():
    with pytest.raises(PromiseError, match="synthetic_acceptance_length"):
        serve_settings(HUB, FOLDER, VllmKnobs.model_validate(SYNTHETIC), {})


def test_remote_code_and_random_weights_are_served_as_they_were_measured():
    assert "--trust-remote-code" not in serve_settings(HUB, FOLDER, VllmKnobs(), {}).command()
    trusted = serve_settings(HUB.model_copy(update={"trust_remote_code": True}), FOLDER, VllmKnobs(), {})
    assert trusted.command() == (f"vllm serve org/model --revision {'0' * 40} --trust-remote-code --dtype bfloat16")
    settings = serve_settings(DUMMY, FOLDER, VllmKnobs(), {})
    assert settings == ServeSettings(str(FOLDER), {"load-format": "dummy", "dtype": "float32"}, {})
    assert settings.command() == f"vllm serve {FOLDER} --load-format dummy --dtype float32"
    off = serve_settings(DUMMY, FOLDER, VllmKnobs(enable_prefix_caching=False), {})
    assert off.in_file()["no-enable-prefix-caching"] is True


def test_what_took_effect_is_written_out_but_what_was_set_goes_before():
    settings = serve_settings(HUB, FOLDER, VllmKnobs(max_num_seqs=8), {"max_num_seqs": 256, "max_model_len": 512})
    assert settings.arguments["max-num-seqs"] == 8
    assert settings.arguments["max-model-len"] == 512
    assert list(settings.arguments)[-2:] == ["max-num-seqs", "max-model-len"]
