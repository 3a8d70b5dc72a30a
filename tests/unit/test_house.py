"""The packages of the pipeline: their names, what they may name, and what they may change."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.__main__ import COMMANDS
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.engines.registry import BUILT_IN

MODULES = sorted((CHECKOUT / "workflow_scripts").rglob("*.py"))


def test_no_two_modules_share_a_name():
    packages = [path.parent.name for path in MODULES if path.name == "__init__.py"]
    names = Counter([path.stem for path in MODULES if path.name != "__init__.py"] + packages)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_says_what_it_holds():
    assert [str(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


# Texts that only look like an engine's name, by module.
NO_ENGINE = {
    "vllm_serve.py": {"vllm"},  # a value of vLLM's argument generation_config
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


ROOMS = ("prepare", "predict", "measure", "parse", "analyse", "present", "deploy")


def named_rooms(path: Path) -> Iterator[str]:
    """The rooms of modules that a module names as texts: whole, or as a command that it starts."""
    for text in texts(path):
        if named := re.fullmatch(rf"workflow_scripts\.({'|'.join(ROOMS)})\.[\w.:]+", text):
            yield named[1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.List):
            words = [part.value if isinstance(part, ast.Constant) else None for part in node.elts]
            if words[1:3] == ["-m", "workflow_scripts"]:
                yield COMMANDS[str(words[3])].partition(".")[0]


def test_a_room_names_only_its_own_modules_and_those_of_earlier_rooms_and_the_core_names_none_outside_engines():
    places = {path: path.relative_to(CHECKOUT / "workflow_scripts").parts[0] for path in MODULES}
    found = {(place, room) for path, place in places.items() if place != "engines" for room in named_rooms(path)}
    assert ("analyse", "measure") in found  # `check-server` sends load to a server
    later = [(place, room) for place, room in found if place not in ROOMS[ROOMS.index(room) :]]
    assert later == []


# Names that others chose, and files that are shown as a source.
NAMED_TWICE = {"config.json", "claims.yaml", "gpus.yaml"}


def test_a_file_that_several_packages_use_has_its_name_in_one():
    packages: dict[str, set[str]] = {}
    for path in MODULES:
        for text in texts(path):
            if named := re.fullmatch(r"[\w.*/-]*?([\w-]+\.(?:jsonl?|parquet|csv|log|html|yaml|zip))", text):
                packages.setdefault(named[1], set()).add(path.parent.name)
    several = {name: sorted(of) for name, of in packages.items() if len(of) > 1 and name not in NAMED_TWICE}
    assert several == {}, "import the name, from workflow_scripts.study.paths for example"


CHANGES = {"clear", "pop", "popitem", "setdefault", "update"}


def changed_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Dicts among a function's parameters that it modifies; one that it gives a new value is its own from there on."""
    given = {
        argument.arg
        for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        if argument.annotation
        and re.search(r"dict\b|Mapping|Counter|R(?:ecord|ow)\b", ast.unparse(argument.annotation))
    }
    nodes = list(ast.walk(function))
    given -= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} - {
        node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed = node.func.value
        elif isinstance(node, ast.AugAssign):
            changed = node.target
        else:
            continue
        if isinstance(changed, ast.Name) and changed.id in given:
            yield f"{function.name}: {changed.id}"


def test_no_function_modifies_a_dict_that_it_was_given():
    functions = {
        path: [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        for path in MODULES
    }
    found = {path.name: [name for each in of for name in changed_parameters(each)] for path, of in functions.items()}
    assert {name: changed for name, changed in found.items() if changed} == {}
