"""Write the table of an installed engine's arguments into config/engine_arguments/.

    kvsweep write-arguments vllm

Names, types and choices come from the engine's own parser; of transformers, from its `GenerationConfig`.
"""

import json
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any

from workflow_scripts.catalog.environments import installed_version
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.arguments import ARGUMENT_TABLES, TYPES, ArgumentTable

# Texts that only a type reads, from the one that reads all: an engine's parser turns them into values.
_PROBES = {"str": "a b", "json": '{"a": 1}', "float": "0.5", "int": "1"}


def table_of_parser(parser: Any) -> ArgumentTable:
    """The table of an engine whose arguments an `argparse` parser has."""
    actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    return {action.dest: _kind(action) for action in sorted(actions, key=lambda action: action.dest)}


def _kind(action: Any) -> str | list[Any]:
    if action.nargs == 0:
        return "bool"
    if action.nargs in ("+", "*"):
        return "list"
    if action.choices:
        return [choice for choice in action.choices if choice is not None]
    if action.type is None:
        return "str"
    for kind, text in _PROBES.items():
        with suppress(Exception):
            return "str" if isinstance(action.type(text), str) else kind
    return "any"


def table_of(package: str) -> ArgumentTable:
    """The table of the installed version."""
    if package == "sglang":
        from sglang.srt.server_args import ServerArgs

        ServerArgs.add_cli_args(parser := ArgumentParser())
        return table_of_parser(parser)
    if package == "transformers":
        from transformers import GenerationConfig

        defaults = {name: value for name, value in GenerationConfig().to_dict().items() if not name.startswith("_")}
        kinds = {name: type(value).__name__ for name, value in sorted(defaults.items())}
        return {name: kind if kind in TYPES else "any" for name, kind in kinds.items()}
    from vllm.engine.arg_utils import EngineArgs

    from workflow_scripts.engines.vllm.versions import argument_parser

    return table_of_parser(EngineArgs.add_cli_args(argument_parser()))


@command("write-arguments", option("package", choices=["vllm", "sglang", "transformers"], help="an installed engine"))
def main(args: Namespace) -> None:
    version = installed_version(args.package) or installed_version(f"{args.package}-cpu")
    out = ARGUMENT_TABLES / f"{args.package}-{version}.json"
    lines = (f"  {json.dumps(name)}: {json.dumps(kind)}" for name, kind in sorted(table_of(args.package).items()))
    write_text(out, "{\n" + ",\n".join(lines) + "\n}\n")
    print(out)
