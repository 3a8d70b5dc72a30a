"""Snakemake whose Slurm executor asks for its jobs every two seconds.

By itself it waits ten seconds longer after each answer without news, up to three minutes.
"""

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda executor: 2, lambda executor, seconds: None)

if __name__ == "__main__":
    main()
