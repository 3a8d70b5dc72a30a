"""Places of a study's results."""

import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.study.paths import usable


@pytest.mark.parametrize(
    "path", [None, "", "-x", "a{b}", "it's", "a\\b", "$(touch x)", "`touch x`", "a\nb", "a\x1b[2J"]
)
def test_a_path_that_snakemake_does_not_pass_on_as_it_is_is_refused(path):
    with pytest.raises(InputError, match=r"^results: .* cannot be used; allowed: a path of printable characters"):
        usable(path, "results")


def test_other_signs_of_a_shell_are_allowed():
    assert str(usable('my "own" é results;*?[a]&#~', "results")) == 'my "own" é results;*?[a]&#~'
