"""What SGLang's own argument parser says about settings, on any machine: names of options and the values allowed. What
the options mean together and for a GPU, SGLang decides only as it starts."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from workflow_scripts.engines.check import EngineSetting, Fault, at_fault
from workflow_scripts.engines.sglang.knobs import SglangServeKnobs


def sglang_faults(settings: Sequence[EngineSetting]) -> list[Fault | None]:
    """The fault of each setting that SGLang's parser refuses, else None, in the order of `settings`."""
    from sglang.srt.server_args import ServerArgs

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    parser = Parser()
    ServerArgs.add_cli_args(parser)

    def refusal(setting: EngineSetting, knobs: SglangServeKnobs) -> str | None:
        try:
            parser.parse_args(["--model-path", str(setting.model_dir), "--dtype", setting.dtype, *knobs.command_line()])
        except ValueError as e:
            return " ".join(str(e).split())
        return None

    def fault(setting: EngineSetting) -> Fault | None:
        knobs = SglangServeKnobs.model_validate(setting.knobs.set_values())
        words = refusal(setting, knobs)
        return None if words is None else Fault(at_fault(knobs, partial(refusal, setting)), words)

    return [fault(setting) for setting in settings]
