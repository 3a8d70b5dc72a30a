"""Print the variables and torch settings of a process, as a job of the fork server or as a plain process."""

import json
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] = ()) -> int:
    import torch
    import transformers

    assert transformers.PreTrainedModel  # imported on first use, as by who loads a model
    names = (torch.__name__, transformers.__name__, "vllm")
    state = {"imported": [name for name in names if name in sys.modules], "environment": dict(os.environ)}
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    sdpa = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    print(json.dumps(state | {"torch": [precision, threads, *sdpa, torch.backends.cudnn.allow_tf32]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
