"""What a terminal gets of texts that others wrote."""

import os
import re
import subprocess
import sys

import pytest

from tests.unit.made_studies import MadeStudy
from workflow_scripts.common.checkout import CHECKOUT

# Clears the screen, ends a style that was never begun, goes back to the start of the line, and is not ASCII.
HOSTILE = "\x1b[2J[/bold]\rno\u202e\x9b2J\u00b5"
SPELLED_OUT = re.compile(r"\\x1b\[2J\[/bold\](\\r| )no\\u202e\\x9b2J\\xb5")  # a reason is one line
STYLE = re.compile(rb"\x1b\[[0-9;]*m")


def run(*words: object, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "workflow_scripts", *map(str, words)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"} | variables
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, timeout=60)


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}], ids=["plain", "with styles"])
def test_records_of_others_reach_a_terminal_as_text(tmp_path, variables):
    made = MadeStudy(tmp_path, {"knobs": {"max_num_seqs": [1, 2]}})
    for cell in made.cells.values():
        made.end(cell, outcome="invalid", reason=f"{cell.knobs.slug()} {HOSTILE}", phases_s={"load": 1.0})
        made.paths.log(cell).touch()
    done = run("status", *made.options, **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(STYLE.search(done.stdout)) == bool(variables)
    shown = STYLE.sub(b"", done.stdout)
    assert {*shown.decode("ascii")} <= {"\n", *map(chr, range(32, 127))}
    assert len(SPELLED_OUT.findall(shown.decode())) == 2


@pytest.mark.parametrize("words", [["check", HOSTILE], ["check", "study", HOSTILE], ["log", HOSTILE]])
def test_messages_about_what_others_named_are_text(words):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert SPELLED_OUT.search(done.stderr.decode("ascii"))
    assert not set(done.stderr) & {0x1B, 0x0D}
