"""A measured vLLM configuration as input for `vllm serve`: a command line, or a file for its `--config`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.engines.vllm.knobs import SERVE_COMMAND, VllmKnobs, command_line
from workflow_scripts.study.definition import ResolvedModel

_KNOBS = VllmKnobs.described().items()
# What `serve_settings` may set: arguments under their command-line names, and environment variables.
ARGUMENTS = {"revision", "load-format", "trust-remote-code", "dtype"} | {
    (knob.argument or name).partition(".")[0].replace("_", "-") for name, knob in _KNOBS if not knob.variable
}
VARIABLES = {knob.variable for _, knob in _KNOBS if knob.variable}


@dataclass(frozen=True)
class ServeSettings:
    """What to serve and how: `arguments` under vLLM's command-line names, and environment variables."""

    model: str
    arguments: dict[str, Any]
    environment: dict[str, str]

    def command(self) -> str:
        """One line for a shell."""
        words = [f"{name}={value}" for name, value in self.environment.items()] + [*SERVE_COMMAND, self.model]
        return shlex.join(words + command_line(self.arguments))

    def config(self) -> str:
        """A YAML file for `vllm serve --config`; environment variables are written as a comment.

        >>> settings = ServeSettings("org/model", {"enable-prefix-caching": False}, {"VLLM_CPU_KVCACHE_SPACE": "1"})
        >>> print(settings.config(), end="")
        # environment: VLLM_CPU_KVCACHE_SPACE=1
        model: org/model
        no-enable-prefix-caching: true
        """
        comments = [f"# environment: {name}={value}\n" for name, value in self.environment.items()]
        return "".join(comments) + yaml.safe_dump(self.in_file(), sort_keys=False)

    def in_file(self) -> dict[str, Any]:
        # vLLM 0.32 silently drops `enable-prefix-caching: false` from the file: it looks for the negative flag among
        # the options of `vllm`, which do not include those of `vllm serve`.
        written = dict(
            (f"no-{name}", True) if value is False else (name, value) for name, value in self.arguments.items()
        )
        return {"model": self.model} | written


Prepared = tuple[ResolvedModel, Path]


def serve_settings(
    model: ResolvedModel, model_dir: Path, knobs: VllmKnobs, effective: Mapping[str, int], draft: Prepared | None = None
) -> ServeSettings:
    """Settings that serve a model as a cell was measured. `model_dir` is served unless the model comes from the hub.
    `effective`: engine arguments that took effect and for which `vllm serve` has other defaults; the study's own
    settings take precedence. `draft`: the model that drafts tokens, and its prepared folder."""
    name, arguments = _loaded(model, model_dir)
    if model.load_format not in ("hub", "auto"):
        arguments |= {"load-format": "dummy"}
    if model.trust_remote_code:
        arguments |= {"trust-remote-code": True}
    draft_name, draft_revision = _loaded(*draft) if draft else (None, {})
    settings = {**effective, **knobs.engine_arguments(draft_name)}
    if draft_revision:
        settings["speculative_config"] |= draft_revision
    ordered = [field for field in (*VllmKnobs.model_fields, "speculative_config") if field in settings]
    return ServeSettings(
        name,
        arguments | {"dtype": model.dtype} | {field.replace("_", "-"): settings[field] for field in ordered},
        knobs.environment(),
    )


def _loaded(model: ResolvedModel, folder: Path) -> tuple[str, dict[str, Any]]:
    if model.load_format == "hub":
        return str(model.hub_repo), {"revision": model.revision} if model.revision else {}
    return str(folder), {}
