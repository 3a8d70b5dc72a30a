"""The commands and files of recommended configurations, read by the argument parser of the installed vLLM."""

import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tests.unit.deploy.promises import deployment, on_cpu, promise
from tests.unit.study.test_serve_command import ALL_KNOBS, FOLDER, HUB
from workflow_scripts.deploy.export import written
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.study.serve_command import ServeSettings, serve_settings

DEFAULTS = VllmKnobs(max_num_seqs=8, enable_prefix_caching=True, enforce_eager=False, kv_cache_dtype="auto")


@pytest.fixture(scope="module")
def parse():
    """What `vllm` makes of its command line, without running anything."""
    pytest.importorskip("vllm")
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    return parser.parse_args


@pytest.mark.parametrize("knobs", [ALL_KNOBS, DEFAULTS], ids=["all", "defaults"])
@pytest.mark.parametrize("way", ["command", "config"])
def test_vllm_reads_back_every_setting(parse, tmp_path, knobs, way):
    settings = serve_settings(HUB, FOLDER, knobs, {"max_num_batched_tokens": 4096})
    read = read_back(parse, tmp_path, settings, way)
    assert (read.model_tag if way == "command" else read.model) == "org/model"
    assert (read.revision, read.dtype, read.max_num_batched_tokens) == ("0" * 40, "bfloat16", 4096)
    expected = knobs.engine_arguments()
    assert {name: getattr(read, name) for name in expected} == expected


@pytest.mark.parametrize("of", [promise(), on_cpu()], ids=["hub", "folder"])
def test_vllm_reads_the_file_of_a_deployment(parse, tmp_path, of):
    file = tmp_path / "vllm.yaml"
    file.write_text(written("vllm.yaml", deployment(tmp_path, of)))
    read = parse(["serve", "--config", str(file)])
    assert (read.model, read.served_model_name) == (of.serve.model, [of.served_model])
    settings = {name.replace("-", "_"): value for name, value in of.serve.arguments.items()}
    assert {name: getattr(read, name) for name in settings} == settings
    assert settings


def read_back(parse, folder: Path, settings: ServeSettings, way: str):
    if way == "command":
        words = shlex.split(settings.command())
        return parse(words[words.index("serve") :])
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(settings.in_file()))
    return parse(["serve", "--config", str(file)])


def test_every_value_of_a_knob_is_one_that_vllm_knows(parse):
    from vllm.config.cache import CacheDType, MambaDType
    from vllm.config.speculative import SpeculativeMethod
    from vllm.model_executor.layers.quantization import QuantizationMethods

    known = {"kv_cache_dtype": CacheDType, "quantization": QuantizationMethods, "speculative_method": SpeculativeMethod}
    for knob, theirs in {**known, "mamba_ssm_cache_dtype": MambaDType}.items():
        ours = values_of(VllmKnobs.model_fields[knob].annotation)
        assert len(ours) > 1, knob
        assert ours <= values_of(theirs), knob


def values_of(annotation: object) -> set[str]:
    """The values of a Literal, wherever it stands in a type."""
    parts = get_args(annotation)
    return set().union(*(values_of(part) if get_args(part) else {part} for part in parts)) - {type(None)}
