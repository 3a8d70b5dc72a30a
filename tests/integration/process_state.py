"""Print the variables and torch settings of a process, as a job of the fork server or as a plain process."""

import json
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] = ()) -> int:
    import torch
    import transformers

    from workflow_scripts.engines.hf.model import torch_state

    assert transformers.PreTrainedModel  # imported on first use, as by who loads a model
    names = (torch.__name__, transformers.__name__, "vllm")
    state = {"imported": [name for name in names if name in sys.modules], "environment": dict(os.environ)}
    print(json.dumps(state | {"torch": torch_state()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
