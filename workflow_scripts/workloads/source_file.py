"""Files that workloads are made from: named relative to the checkout, and held to their checksum."""

from pathlib import Path

from workflow_scripts.workloads.request import WorkloadError
from workflow_scripts.workloads.workload_kinds import FileWorkload


def checked_file(spec: FileWorkload) -> Path:
    """Where a workload's file lies.

    Raises:
        WorkloadError: it is not there, or is another one than the study's sha256 says.
    """
    if fault := spec.file_fault():
        raise WorkloadError(fault)
    return spec.path
