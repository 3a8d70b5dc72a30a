"""The packages of the pipeline: their names, what they may name, and what they may change."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.engines.registry import BUILT_IN

MODULES = sorted((CHECKOUT / "workflow_scripts").rglob("*.py"))


# Texts that only look like an engine's name, by module.
NO_ENGINE = {
    "vllm_serve.py": {"vllm"},  # a value of vLLM's argument generation_config
    "sglang_serve.py": {"openai"},  # a value of its option --sampling-defaults
    "kubernetes_files.py": {"hf"},  # the command of huggingface_hub
}


def texts(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        constants = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
        yield from (value for value in constants if isinstance(value, str))
    else:
        yield from re.findall(r"""["']([^"'\n]*)["']""", source)


def test_only_its_description_names_an_engine():
    names = {engine.name for engine in BUILT_IN} | {"hf", "hf-"}
    files = [path for path in MODULES if path.parent.name != "engines"]
    files += [CHECKOUT / "Snakefile", *(CHECKOUT / "rules").glob("*.smk")]
    found = {path.name: names & set(texts(path)) - NO_ENGINE.get(path.name, set()) for path in files}
    assert {name: sorted(engines) for name, engines in found.items() if engines} == {}, (
        "write VLLM.name, HF_STATIC.name, ... of workflow_scripts/engines, or ask the engine's description"
    )
