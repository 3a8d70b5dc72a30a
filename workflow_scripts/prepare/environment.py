"""Install the environment of some cells from its lock, if it is not there.

    kvsweep install-environment --environment vllm-0.25.1 --kind cpu --out RECORD.json

An environment that the site has put there, as a virtual environment or as a script `bin/python`, is left as it is. If
the installation fails, the record says why, and the command still ends with 0: only the cells of this environment end,
with that reason.
"""

import subprocess
import sys
from argparse import Namespace

from workflow_scripts.catalog.environments import installing, is_installed, load_environments, python_of
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json


def install(environment: str, kind: str) -> str | None:
    """Install an environment if it is not there; why that failed, or None."""
    if is_installed(environment, kind):
        return None
    mark = installing(python_of(environment, kind))
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    ended = subprocess.run(
        ["envs/setup.sh", "install", f"{environment}-{kind}", str(mark.parent)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stdout.write(ended.stdout)
    if ended.returncode == 0:
        mark.unlink()
        return None
    said = next((line.strip() for line in reversed(ended.stdout.splitlines()) if line.strip()), "without a word")
    return f"envs/setup.sh ended with status {ended.returncode}: {said}"


@command(
    "install-environment",
    option("--environment", required=True, help="its name, e.g. vllm-0.25.1"),
    option("--kind", required=True, help="kind of device: cpu or cuda"),
    out("record of how it went"),
)
def main(args: Namespace) -> None:
    """Install an environment."""
    environments = load_environments()
    locks = [f"{name} for {kind}" for name, of_kind in environments.items() for kind in of_kind]
    if args.kind not in environments.get(args.environment, {}):
        raise InputError(f"{args.environment} for {args.kind}: there is no such lock; allowed: {', '.join(locks)}")
    python = python_of(args.environment, args.kind)
    write_json(args.out, {"python": str(python), "fault": install(args.environment, args.kind)})
