"""Student's t distribution for predictions, which start faster without SciPy."""

import math


def share_within(t: float, degrees: int) -> float:
    """Probability that a variable with Student's t distribution lies between -t and t [Abramowitz-Stegun 26.7.3-4].

    >>> round(share_within(12.7062, 1), 4), round(share_within(3.1824, 3), 4), round(share_within(2.2281, 10), 4)
    (0.95, 0.95, 0.95)
    """
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
