"""Any OpenAI-compatible server: what a study may set, and the description of the client that measures it."""

from typing import Annotated

from pydantic import Field

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.hf.knobs import PACKAGES
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.workloads.arrivals import Load


class OpenAiKnobs(Load, Knobs):
    """A server of config/endpoints.yaml, and the load on it. The server's own settings are in its command there."""

    endpoint: Annotated[
        str,
        Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="a name in config/endpoints.yaml"),
        Knob("at-", settles=("prompts", "ignores_eos")),
    ]

    @property
    def max_concurrency(self) -> int:
        """The users if a study sets them; otherwise the limit is unknown, and vLLM's default is assumed."""
        return self.users or 256


OPENAI = EngineDescription(
    name="openai",
    knobs=OpenAiKnobs,
    # Of all servers that an endpoint can name, only that of transformers is in this environment.
    packages=PACKAGES,
    preload=("transformers.modeling_utils",),
    adapter="workflow_scripts.engines.openai.adapter:OpenAiEndpoint",
)
