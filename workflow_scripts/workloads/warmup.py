"""How an engine is warmed up: passes over requests that do not count, until two passes in a row take equally long.

One warm-up is for all cells of a session: its requests are chosen from those of all workloads.

A pass serves as many requests as may run at once and some more, so that whatever happens first at that concurrency
(memory that grows, kernels that are compiled or chosen), and when a request that waits joins others, happens before
anything is timed.
"""

from collections.abc import Sequence
from statistics import fmean

_LEAST_REQUESTS = 4
# One request waits for each so many that run.
RUN_PER_WAITING = 8
_MOST_PASSES = 6
# The first pass does everything for the first time; two more show whether that was all. A plan assumes this number.
USUAL_PASSES = 3
# Two passes in a row whose times differ by no more count as equally fast.
TOLERANCE = 0.05


def pass_size(requests: int, concurrency: int, joins: bool = True) -> int:
    """Requests in a pass, if the workload has `requests` and `concurrency` of them may run at once.

    `joins`: whether a request that waits joins those that run; it does not if batches stay as they are.

    >>> [pass_size(512, concurrency) for concurrency in (1, 16, 256, 1024)]
    [4, 18, 288, 512]
    """
    return min(requests, max(_LEAST_REQUESTS, concurrency + joins * -(-concurrency // RUN_PER_WAITING)))


def most_passes(requests: int, in_a_pass: int, repeats: int) -> int:
    """Maximum number of passes of a cell: at least three; together at most half as many requests as are measured.

    >>> [most_passes(512, in_a_pass, repeats=3) for in_a_pass in (64, 192, 256, 512)]
    [6, 4, 3, 3]
    """
    return max(USUAL_PASSES, min(_MOST_PASSES, repeats * requests // (2 * in_a_pass)))


def chosen(prompt_tokens: Sequence[int], count: int) -> list[int]:
    """Which `count` requests make a pass: spread evenly over prompt lengths, with the longest; in their own order.

    >>> chosen([10, 90, 30, 20, 80, 50], 3)
    [1, 3, 5]
    """
    longest_first = sorted(range(len(prompt_tokens)), key=lambda i: -prompt_tokens[i])
    return sorted(longest_first[index * len(prompt_tokens) // count] for index in range(count))


def is_steady(passes_s: Sequence[float]) -> bool:
    """Whether the last two passes, which serve the same requests, took equally long.

    >>> is_steady([9.0]), is_steady([9.0, 4.2]), is_steady([9.0, 4.2, 4.0])
    (False, False, True)
    """
    return len(passes_s) > 1 and abs(passes_s[-1] / passes_s[-2] - 1) <= TOLERANCE


def is_warm(repeats_s: Sequence[float]) -> bool:
    """Whether the first of several repeats took no longer than the later ones do on average.

    >>> is_warm([4.1, 3.9, 4.1]), is_warm([4.5, 3.9, 4.1]), is_warm([3.5, 3.9, 4.1])
    (True, False, True)
    """
    return repeats_s[0] <= (1 + TOLERANCE) * fmean(repeats_s[1:])
