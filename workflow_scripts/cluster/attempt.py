"""Which attempt of a job this is, and how long a cell may take in it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """The `number`-th of at most `of` attempts, counted from 1."""

    number: int = 1
    of: int = 1

    @property
    def last(self) -> bool:
        return self.number >= self.of

    def time_limit_s(self, cap_s: float) -> float:
        """Time limit of a cell: it doubles with each attempt and is `cap_s` in the last.

        >>> [Attempt(number, of=3).time_limit_s(7200) for number in (1, 2, 3)]
        [1800.0, 3600.0, 7200.0]
        >>> Attempt().time_limit_s(7200)
        7200.0
        """
        return cap_s / 2.0 ** max(self.of - self.number, 0)
