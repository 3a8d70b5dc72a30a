"""Random faults on a real Slurm of four nodes, and what must hold after them.

    make bench-faults SEED=1 FAULTS=70

A study of short real cells runs under `snakemake --profile slurm`, while faults hit it that follow from the seed: the
same seed gives the same kinds, in the same order. tests/faults/ has the kinds, and what is checked. Needs root, and
Slurm (`make debian`).
"""

import argparse

from tests.faults.campaign import Campaign, run
from tests.faults.kinds import KINDS, drawn
from workflow_scripts.common.command import run_command


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults, and a check of what is left.")
    parser.add_argument("--seed", type=int, default=1, help="what decides the faults (%(default)s)")
    parser.add_argument("--faults", type=int, default=200, help="their number (%(default)s)")
    parser.add_argument("--per-episode", type=int, default=16, help="faults before a study is completed (%(default)s)")
    parser.add_argument("--only", nargs="*", metavar="KIND", help="draw only these kinds")
    parser.add_argument("--keep", action="store_true", help="keep the folder if something was found")
    args = parser.parse_args()
    campaign = Campaign(lambda text: print(text, flush=True))
    names = set(args.only or KINDS)
    if unknown := names - set(KINDS):
        parser.error(f"no kind {sorted(unknown)}; there are {sorted(KINDS)}")
    try:
        run(campaign, drawn(args.seed, args.faults, names), args.per_episode)
    finally:
        campaign.stop()
    for name in sorted(KINDS):
        print(f"{campaign.hit[name]:4}  {name}")
    print(f"{campaign.hit.total()} faults, seed {args.seed}: {len(campaign.findings)} findings")
    if args.keep and campaign.findings:
        print(f"kept: {campaign.root}")
    else:
        campaign.remove()
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    run_command(main)
