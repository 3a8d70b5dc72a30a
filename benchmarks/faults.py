"""Random faults on a real Slurm of four nodes, and what must hold after them.

    make bench-faults SEED=1 FAULTS=70

A study of short real cells runs under `snakemake --profile slurm`, while faults hit it that follow from the seed: the
same seed gives the same kinds, in the same order. tests/faults/ has the kinds, and what is checked. Needs root and
Slurm (`make debian`).
"""

import argparse

from tests.faults.campaign import Campaign, run
from tests.faults.kinds import KINDS, drawn
from workflow_scripts.common.command import run_command


def main() -> int:
    """Run a campaign; print every fault and every finding. Exit code 1: something was found."""
    parser = argparse.ArgumentParser(description="Random faults on a real Slurm, and a check of what is left.")
    parser.add_argument("--seed", type=int, default=1, help="what decides the faults (%(default)s)")
    parser.add_argument("--faults", type=int, default=200, help="their number (%(default)s)")
    parser.add_argument("--per-episode", type=int, default=16, help="faults before a study is completed (%(default)s)")
    parser.add_argument("--only", nargs="*", choices=sorted(KINDS), metavar="KIND", help="draw only these kinds")
    parser.add_argument("--keep", action="store_true", help="keep the folder if something was found")
    args = parser.parse_args()
    if args.only:
        for name in set(KINDS) - set(args.only):
            del KINDS[name]
    campaign = Campaign(lambda text: print(text, flush=True))
    try:
        run(campaign, drawn(args.seed, args.faults), args.per_episode)
    finally:
        campaign.stop()
    for name in sorted(KINDS):
        print(f"{campaign.hit[name]:4}  {name}")
    whole_s = campaign.lost_s + campaign.counted_s
    print(f"{campaign.hit.total()} faults, seed {args.seed}: {len(campaign.findings)} findings")
    print(f"device time: {whole_s:.0f} s, of which faults cost {campaign.lost_s:.0f} s")
    if args.keep and campaign.findings:
        print(f"kept: {campaign.root}")
    else:
        campaign.remove()
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    run_command(main)
