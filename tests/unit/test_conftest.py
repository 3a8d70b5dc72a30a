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
"""


@pytest.mark.parametrize(
    ("text", "skipped", "required"),
    [
        (TESTS, {"passed": 1, "skipped": 1}, {"passed": 1, "errors": 1}),
        ("import pytest; pytest.importorskip('no_such_module')", {"skipped": 1}, {"errors": 1}),
    ],
    ids=["tool", "module"],
)
def test_what_is_skipped_fails_where_tools_are_required(pytester, monkeypatch, text, skipped, required):
    monkeypatch.delenv(STRICT, raising=False)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(text)
    pytester.runpytest("--strict-markers").assert_outcomes(**skipped)
    monkeypatch.setenv(STRICT, "1")
    pytester.runpytest("--strict-markers").assert_outcomes(**required)
