import pytest

from workflow_scripts.statistics import summary as repeats
from workflow_scripts.statistics.variation import Known


@pytest.fixture(scope="module", autouse=True)
def nothing_known_elsewhere():
    """Intervals of these tests come from their own cells alone, so that they are those of textbook tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "known_elsewhere", lambda is_cpu, study: Known())
        yield
