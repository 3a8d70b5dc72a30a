"""vLLM's own throughput benchmark on the requests of a cell, in its own process.

    python -m benchmarks.vllm_throughput JOB.json RESULT.json

The job names the workload file and the engine's arguments, with the model folder. The benchmark's function is called
from Python, because vLLM's command does not start in a CPU build, and because its command line takes no token ids.
"""

import argparse
from pathlib import Path

from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import read_json, read_jsonl, write_json


def main() -> int:
    parser = argparse.ArgumentParser(description="vLLM's own throughput benchmark on a cell's requests.")
    parser.add_argument("job", type=Path)
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    job = read_json(args.job)

    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.throughput import run_vllm
    from vllm.engine.arg_utils import EngineArgs

    def requests(path: Path) -> list[SampleRequest]:
        return [
            SampleRequest(
                prompt={"prompt_token_ids": r["prompt_token_ids"]},
                prompt_len=len(r["prompt_token_ids"]),
                expected_output_len=r["output_tokens"],
            )
            for r in read_jsonl(path)
        ]

    workload = Path(job["workload"])
    timed = requests(workload)
    elapsed_s, _ = run_vllm(
        timed,
        n=1,
        engine_args=EngineArgs(**job["engine_args"]),
        do_profile=False,
        warmup_requests=requests(workload.with_name("warmup.jsonl")) if job["warm_up"] else None,
    )
    tokens = sum(r.prompt_len + r.expected_output_len for r in timed)
    write_json(args.result, {"elapsed_s": elapsed_s, "total_tokens_per_s": tokens / elapsed_s})
    return 0


if __name__ == "__main__":
    run_command(main)
