"""Numbers with the digits that their intervals allow."""

import math

# The unit of the last digit is at least this share of the interval's width.
OF_WIDTH = 0.03


def rounded(value: float, low: float = math.nan, high: float = math.nan, least: int = 1) -> str:
    """A number whose last digit is not much smaller than its error, of at least so many significant digits; without an
    interval, two.

    >>> rounded(57.6, 48, 69.2), rounded(1.332, 1.192, 1.488), rounded(11338, 9537, 13480), rounded(0.983, 0.98, 0.99)
    ('58', '1.33', '11,000', '0.983')
    >>> rounded(197.3), rounded(0.0711), rounded(5.3, 2.06, 13.6)
    ('200', '0.071', '5')
    """
    if not math.isfinite(value):
        return "–"
    width = high - low
    if math.isfinite(width) and width > 0:
        last = math.ceil(math.log10(OF_WIDTH * width) - 1e-9)
    else:
        last = math.floor(math.log10(abs(value))) - 1 if value else 0
    if value:
        last = min(last, math.floor(math.log10(abs(value))) + 1 - least)
    return f"{round(value, -last):,.{max(0, -last)}f}"


def rounded_ratio(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A ratio with the digits of its interval; one below 2 has at least two, because with one it may say nothing.

    >>> rounded_ratio(1.28, 0.3, 5), rounded_ratio(5.3, 2.06, 13.6)
    ('1.3', '5')
    """
    return rounded(value, low, high, least=1 + (value < 2))


def agreeing(value: float, low: float, high: float, other: float) -> str:
    """A ratio with as many of its digits as another estimate of it has too.

    >>> agreeing(57.6, 52.7, 63, 11_300 / 200), agreeing(57.6, 52.7, 63, 13_400 / 232), agreeing(1.28, 1.04, 1.58, 1.4)
    ('60', '58', '1.3')
    """
    width = high - low
    while (text := rounded_ratio(value, 0, width)) != rounded_ratio(other, 0, width) and width < 33 * value:
        width *= 10
    return text
