"""Files that workloads are made from: named relative to the checkout, and checked against their checksum."""

from pathlib import Path

from workflow_scripts.workloads.request import WorkloadError
from workflow_scripts.workloads.workload_kinds import FileWorkload


def checked_file(spec: FileWorkload) -> Path:
    """Path of a workload's file.

    Raises:
        WorkloadError: it is missing, or its content differs from the study's sha256.
    """
    if fault := spec.file_fault():
        raise WorkloadError(fault)
    return spec.path
