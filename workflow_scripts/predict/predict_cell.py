"""Predict one cell, as JSON: KV blocks, what limits it, tokens/s, latencies and time, with their bands.

    kvsweep predict --model llama-3.1-8b-instruct --gpu h200 --block-size 16 --max-num-seqs 256 \\
        --study config/studies/paged_attention.yaml --workload sharegpt-300

The fields are the columns of `plan.csv` that have a value; docs/plan.md explains them. No engine runs.
"""

import json
from argparse import Namespace

from workflow_scripts.common.command import command
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.predict.one_cell import asked_cell, cell_options
from workflow_scripts.predict.predictions import VLLM_VERSION, at_version, predict_cells


@command("predict", *cell_options(VLLM.name), VLLM_VERSION)
def main(args: Namespace) -> None:
    study, cell, prepared = asked_cell(args)
    (record,) = predict_cells(study, at_version([cell], args.vllm_version), prepared)
    row = {name: value for name, value in record.row().items() if value is not None}
    print(json.dumps(row, indent=2))
