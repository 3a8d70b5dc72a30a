import numpy as np
import pytest

from workflow_scripts.statistics import samples
from workflow_scripts.statistics.variation import Known


@pytest.fixture(scope="module", autouse=True)
def quiet_machines():
    """Starts of other studies vary by 0.1 %, like most of those made up here, so that small differences are decided."""
    known = Known(*map(np.array, [0.001] * 3 + [0.0005] * 4 + [0.7] * 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "known_elsewhere", lambda cells: Known(*(np.full(len(cells), of) for of in known)))
        yield known
