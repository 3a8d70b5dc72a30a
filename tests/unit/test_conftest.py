"""Tests that need a tool: skipped without it, but never skipped if tools are required."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
STRICT = "KVSWEEP_REQUIRE_TOOLS"
TESTS = """
    import pytest

    @pytest.mark.needs_tool("sh")
    def test_with_a_tool_that_is_here():
        pass

    @pytest.mark.needs_tool("sh", "no-such-tool")
    def test_with_a_tool_that_is_missing():
        pass

    @pytest.mark.xfail(strict=True)
    def test_that_is_expected_to_fail():
        assert False
"""


@pytest.fixture
def project(pytester, monkeypatch):
    monkeypatch.delenv(STRICT, raising=False)
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def test_skips_with_a_hint_what_lacks_its_tool(project):
    project.makepyfile(TESTS)
    result = project.runpytest("-rs", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["SKIPPED*no no-such-tool here; on Debian, `make debian` installs*"])
    assert result.ret == pytest.ExitCode.OK


def test_fails_what_lacks_its_tool_where_tools_are_required(project, monkeypatch):
    monkeypatch.setenv(STRICT, "1")
    project.makepyfile(TESTS)
    result = project.runpytest("--strict-markers")
    result.assert_outcomes(passed=1, errors=1, xfailed=1)
    result.stdout.fnmatch_lines([f"{STRICT} is set, so this may not be skipped: *no-such-tool*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_fails_a_module_that_skips_itself_where_tools_are_required(project, monkeypatch):
    project.makepyfile("import pytest; pytest.importorskip('no_such_module')")
    assert project.runpytest().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    monkeypatch.setenv(STRICT, "1")
    result = project.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no_such_module*"])
