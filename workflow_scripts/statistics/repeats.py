"""How many repeats a start is worth, by config/variation.yaml. Measuring imports this, so it needs no library.

Source: [Kalibera] Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
"""

import math
from functools import cache

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml

RECORD = CHECKOUT / "config" / "variation.yaml"


@cache
def of_starts_and_repeats(is_cpu: bool) -> tuple[float, float]:
    """Standard deviations of logarithms on CPUs or GPUs: of a start beyond the error of its repeats, and of a repeat.

    >>> of_starts_and_repeats(True)
    (0.08, 0.071)
    """
    of = read_yaml(RECORD, InputError)["cpu" if is_cpu else "gpu"]
    return of["starts_pct"] / 100, of["repeats_pct"] / 100


def best_repeats(start_s: float, repeat_s: float, is_cpu: bool, at_least: int, at_most: int) -> int:
    """Repeats that give a mean of one cell the smallest error in the same time; `start_s` is of all else. [Kalibera]

    >>> [best_repeats(seconds, 1.0, True, 3, 20) for seconds in (1.0, 100.0, 1e6)]
    [3, 9, 20]
    """
    start_sd, repeat_sd = of_starts_and_repeats(is_cpu)
    best = math.sqrt(start_s / repeat_s) * repeat_sd / start_sd
    return min(max(round(best), at_least), at_most)
