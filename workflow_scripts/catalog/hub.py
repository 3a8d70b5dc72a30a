"""Files of a model on the Hugging Face hub, at one commit."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from httpx2 import HTTPError  # the client of huggingface_hub
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from workflow_scripts.common.faults import InputError


def fetch(repo: str, revision: str, patterns: Sequence[str]) -> list[Path]:
    """Files at the top of `repo` at commit `revision` whose names match `patterns`, from the hub's cache (`HF_HOME`) or
    the network; the token comes only from the environment variable `HF_TOKEN`. Raises InputError if they cannot be
    had."""
    # Each retry logs a warning; the failure itself is reported once, below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        snapshot = snapshot_download(
            repo,
            revision=revision,
            token=os.environ.get("HF_TOKEN") or False,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
        )
    except RepositoryNotFoundError:  # or gated
        raise InputError(
            f"{repo} is not on the hub, or gated or private: accept its licence on the hub and set HF_TOKEN to a token "
            "of that account"
        ) from None
    except LocalEntryNotFoundError:
        raise InputError(
            f"{repo} at {revision}: the hub cannot be reached and the cache does not hold it; run this once where there"
            " is a network, with the same HF_HOME, or set load_format: dummy in the study for a model of config/models/"
        ) from None
    except (HfHubHTTPError, HTTPError) as e:
        raise InputError(f"{repo} at {revision}: the hub answers: {' '.join(str(e).split())}") from None
    return sorted(path for path in Path(snapshot).glob("*") if any(path.match(p) for p in patterns))
