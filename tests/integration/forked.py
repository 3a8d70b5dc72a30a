"""vLLM's server in a child of the fork server that other tests have started, where it starts in seconds."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.engines.vllm.adapter import _serve


def main(argv: Sequence[str]) -> int:
    """Serve as a file for `vllm serve --config` says, with its folder on the path for modules: the file, and a port."""
    config, port = argv
    sys.path.append(str(Path(config).parent))
    with tempfile.TemporaryDirectory() as folder:
        _serve(["--config", config, "--host", "127.0.0.1", "--port", port], Path(folder, "effective.json"), on_cpu=True)
    return 0
