import numpy as np
import pytest

from tests.unit.questions.synthetic_starts import samples
from workflow_scripts.statistics.comparisons import FLAT, compare, verdicts
from workflow_scripts.statistics.costs import POWER, Costs

START_SD, REPEAT_SD = 0.003, 0.028


@pytest.mark.parametrize("repeats", [3, 5])
def test_as_many_starts_as_are_needed_show_two_equal_cells_to_be_flat(repeats):
    starts = int(Costs(60.0, 8.0, START_SD, REPEAT_SD).starts_to_be_flat(2.0, repeats))

    def shown(starts):
        log = np.random.default_rng(1).normal(0, (START_SD**2 + REPEAT_SD**2 / repeats) ** 0.5, (2000, 2, starts))
        return float((verdicts(compare(samples(log), [0], [1]), 2.0) == FLAT).mean())

    assert shown(starts - 3) < POWER <= shown(starts) < 0.95


def test_the_cheapest_way_is_the_cheapest_of_all():
    costs = Costs(np.array([60.0, 6.0]), np.array([8.0, 20.0]), START_SD, REPEAT_SD)
    starts, repeats, both_s = costs.cheapest_flat(2.0, 1, 30)
    one = [2 * float(costs.starts_to_be_flat(2.0, r)) * (60 + 8 * r) if r > 1 else np.inf for r in range(1, 31)]
    assert (both_s[0], repeats[0]) == (min(one), 1 + int(np.argmin(one)))
    # Repeats are worth more where a start takes long.
    assert (repeats[0] > repeats[1], starts[0] < starts[1]) == (True, True)
    # Starts that vary by more than any number of them can average out.
    assert np.isnan(Costs(60.0, 8.0, 0.2, REPEAT_SD).cheapest_flat(2.0, 1, 30)).all()
