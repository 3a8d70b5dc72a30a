"""A measured vLLM setting as input for `vllm serve`: a command line, or what its `--config` holds."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.vllm.knobs import SERVE_COMMAND, VllmKnobs, command_line
from workflow_scripts.study.definition import ResolvedModel


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

    def in_file(self) -> dict[str, Any]:
        """The keys of a YAML file for `vllm serve --config`; it has no environment variables."""
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
    settings take precedence. `draft`: the model that drafts tokens, and its prepared folder. Raises PromiseError for
    drafts that are accepted at random."""
    if knobs.drafts and knobs.synthetic_acceptance_length:
        raise PromiseError("synthetic_acceptance_length accepts drafts at random, so the answers are not the model's")
    name, arguments = _loaded(model, model_dir)
    if model.load_format not in ("hub", "auto"):
        arguments |= {"load-format": "dummy"}
    if model.trust_remote_code:
        arguments |= {"trust-remote-code": True}
    draft_name, draft_revision = _loaded(*draft) if draft else (None, {})
    settings = {**effective, **knobs.engine_arguments(draft_name)}
    if draft_revision:
        settings["speculative_config"] |= draft_revision
    names = (*VllmKnobs.model_fields, "speculative_config", *knobs.other_arguments())
    ordered = [field for field in names if field in settings]
    return ServeSettings(
        name,
        arguments | {"dtype": model.dtype} | {field.replace("_", "-"): settings[field] for field in ordered},
        knobs.environment(),
    )


def _loaded(model: ResolvedModel, folder: Path) -> tuple[str, dict[str, Any]]:
    if model.load_format == "hub":
        return str(model.hub_repo), {"revision": model.revision} if model.revision else {}
    return str(folder), {}


class PromiseError(InputError):
    """A study that promises nothing for the requested setting."""
