import pytest
from scipy import stats

from workflow_scripts.predict.speed import share_within


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 99])
def test_it_is_the_distribution_that_scipy_computes(degrees):
    for t in (0.0, 0.3, 1.0, 2.1, 12.7, 500.0):
        expected = stats.t.cdf(t, degrees) - stats.t.cdf(-t, degrees)
        assert share_within(t, degrees) == pytest.approx(expected, abs=1e-12)
