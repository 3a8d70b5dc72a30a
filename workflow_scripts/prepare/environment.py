"""Install the environment of some cells from its lock, if it is not there.

    kvsweep install-environment --environment vllm-0.25.1 --kind cpu --out RECORD.json

An environment that the site has put there, as a virtual environment or as a script `bin/python`, is left as it is. If
the installation fails, the record says why, and the command still ends with 0: only the cells of this environment end,
with that reason.
"""

from argparse import Namespace

from workflow_scripts.catalog.environments import install, load_environments, python_of
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json


@command(
    "install-environment",
    option("--environment", required=True, help="its name, e.g. vllm-0.25.1"),
    option("--kind", required=True, help="kind of device: cpu or cuda"),
    out("record of how it went"),
)
def main(args: Namespace) -> None:
    environments = load_environments()
    locks = [f"{name} for {kind}" for name, of_kind in environments.items() for kind in of_kind]
    if args.kind not in environments.get(args.environment, {}):
        raise InputError(f"{args.environment} for {args.kind}: there is no such lock; allowed: {', '.join(locks)}")
    python = python_of(args.environment, args.kind)
    write_json(args.out, {"python": str(python), "fault": install(args.environment, args.kind)})
