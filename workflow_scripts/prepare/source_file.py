"""Files that workloads are made from: named relative to the checkout, and held to their checksum."""

from pathlib import Path

from workflow_scripts.files import sha256_of
from workflow_scripts.prepare.request import WorkloadError

CHECKOUT = Path(__file__).resolve().parents[2]


def checked_file(file: Path, sha256: str) -> Path:
    """Where a study's file lies.

    Raises:
        WorkloadError: it is not there, or is another one than the study's sha256 says.
    """
    path = CHECKOUT / file
    if not path.is_file():
        raise WorkloadError(f"{path}: there is no such file; docs/workloads.md says where such files are from")
    found = sha256_of(path)
    if found != sha256:
        raise WorkloadError(f"{path}: its sha256 is {found}, the study expects {sha256}")
    return path
