"""Fetch the ShareGPT file of a study from the Hugging Face hub, and check its checksum.

    kvsweep fetch-sharegpt --study config/studies/paged_attention.yaml

The file is put where the study's workloads expect it. An existing file is only checked.
"""

import sys
from argparse import Namespace

from workflow_scripts.catalog.hub import fetch
from workflow_scripts.common.command import STUDY, command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import sha256_of, write_bytes
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import checked_file
from workflow_scripts.workloads.workload_kinds import ShareGptWorkload

DATASET = "anon8231489123/ShareGPT_Vicuna_unfiltered"
REVISION = "192ab2185289094fc556ec8ce5ce1e8e587154ca"


@command("fetch-sharegpt", STUDY)
def main(args: Namespace) -> None:
    specs = [spec for spec in load_study(args.study).workloads.values() if isinstance(spec, ShareGptWorkload)]
    if not specs:
        raise StudyError(f"{args.study}: no workload has kind: sharegpt")
    for spec in specs:
        if not spec.path.exists():
            files = fetch(DATASET, REVISION, [spec.path.name], "dataset")
            if not files:
                raise InputError(f"the dataset {DATASET} has no file {spec.path.name} at {REVISION}")
            if (sha256 := sha256_of(files[0])) != spec.sha256:
                fault = f"its sha256 is {sha256}, the study expects {spec.sha256}"
                raise InputError(f"{spec.path.name} of {DATASET}: {fault}")
            write_bytes(spec.path, files[0].read_bytes())
        print(f"{checked_file(spec)}: there, with the study's sha256", file=sys.stderr)
