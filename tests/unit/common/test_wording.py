"""Numbers as a reader says them."""

import pytest

from workflow_scripts.common.wording import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.4, "999"),
        (999.6, "1,000"),
        (1000.0, "1,000"),
        (-1234.5, "-1,230"),
        (12.3456, "12.3"),
        (0.001234567, "0.00123"),
        (3.0, "3"),
        (0.0, "0"),
    ],
)
def test_numbers_in_words(value, text):
    assert number(value) == text
