"""What ruff's rules on safety do not see: text that becomes markup."""

import re
from pathlib import Path

import jinja2
import pandas as pd

from workflow_scripts.page.kit import SIZES, bar, use_style
from workflow_scripts.page.plot import inline, write_plot

ROOT = Path(__file__).parents[2]


def test_the_page_marks_nothing_as_markup_but_its_own_style_and_script():
    template = (ROOT / "report" / "page.html.j2").read_text(encoding="utf-8")
    parsed = jinja2.Environment(autoescape=True).parse(template)
    marked = [node.node for node in parsed.find_all(jinja2.nodes.Filter) if node.name == "safe"]
    # A drawn figure is one of ours, with the texts of others as text.
    names = [node.node.attr if isinstance(node, jinja2.nodes.Getitem) else node.name for node in marked]
    assert sorted(names) == ["drawn", "script", "style"]
    assert "autoescape" not in template


def test_only_the_terminal_for_texts_of_others_is_used():
    modules = (ROOT / "workflow_scripts").rglob("*.py")
    assert [path.name for path in modules if "rich.console import Console" in path.read_text()] == ["terminal.py"]


# Words that the workflow itself chooses, options that are quoted where they are made, and commands of the site file.
UNQUOTED = {"weights", "first", "attempts", "plan", "setup", "launcher"}


def test_every_path_in_a_rules_command_is_quoted():
    rules = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
    commands = [block for file in rules for block in re.findall(r"\n +shell:\n((?: .*\n|\n)+)", file.read_text())]
    assert len(commands) > 20
    named = re.findall(r"\{(?:input|output|log|params|wildcards)(?:\.(\w+))?\}", "".join(commands))
    assert {*named} <= UNQUOTED
    assert not re.search(r'(?<!")\$(STUDY|RESULTS)', "".join(commands))


def test_text_in_a_drawn_figure_is_text(tmp_path):
    use_style()
    script = "<script>alert('from a label')</script>"
    rows = pd.DataFrame({"name": [script], "value": [2.0], "low": [1.0], "high": [3.0]})
    write_plot(bar(rows, script, script), tmp_path, "f")
    for kind in SIZES:
        drawn = inline(tmp_path / f"f{kind}.svg")
        assert "<script" not in drawn
        assert drawn.count("&lt;script&gt;") >= 2
        assert " style=" not in drawn
