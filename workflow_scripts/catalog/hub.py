"""Files of a model or a dataset on the Hugging Face hub, at one commit."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from httpx2 import HTTPError  # the client of huggingface_hub
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from workflow_scripts.common.faults import InputError

# What to do without a network, by type of repository.
_WITHOUT = {
    "model": "set load_format: dummy in the study for a model of config/models/",
    "dataset": "measure without the file, if the workload has a fallback",
}


def fetch(repo: str, revision: str, patterns: Sequence[str], repo_type: str = "model") -> list[Path]:
    """Files at the top of `repo` at commit `revision` whose names match `patterns`, from the hub's cache (`HF_HOME`) or
    the network; the token comes only from the environment variable `HF_TOKEN`. Raises InputError if they cannot be
    had."""
    # Each retry logs a warning; the failure itself is reported once, below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        snapshot = snapshot_download(
            repo,
            revision=revision,
            repo_type=repo_type,
            token=os.environ.get("HF_TOKEN") or False,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
        )
    except GatedRepoError:
        raise InputError(
            f"{repo} is gated: accept its licence on the hub and set HF_TOKEN to a token of that account"
        ) from None
    except RepositoryNotFoundError:
        raise InputError(f"{repo}: not on the hub, or private; set HF_TOKEN for a private one") from None
    except LocalEntryNotFoundError:
        raise InputError(
            f"{repo} at {revision}: the hub cannot be reached and the cache does not hold it; run this once where "
            f"there is a network, with the same HF_HOME, or {_WITHOUT[repo_type]}"
        ) from None
    except HfHubHTTPError as e:
        raise InputError(
            f"{repo} at {revision}: the hub answers {e.response.status_code}: {e.server_message}"
        ) from None
    except HTTPError as e:
        raise InputError(f"{repo} at {revision}: the connection to the hub failed: {e}") from None
    return sorted(path for path in Path(snapshot).glob("*") if any(path.match(p) for p in patterns))
