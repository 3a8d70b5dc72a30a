"""What ruff's rules on safety do not see: text that becomes markup."""

import re
from pathlib import Path

import jinja2

from workflow_scripts.page.plot import use_style

ROOT = Path(__file__).parents[2]


def test_the_page_marks_nothing_as_markup_but_its_own_style_and_script():
    template = (ROOT / "report" / "page.html.j2").read_text(encoding="utf-8")
    parsed = jinja2.Environment(autoescape=True).parse(template)
    marked = [node.node for node in parsed.find_all(jinja2.nodes.Filter) if node.name == "safe"]
    assert sorted(getattr(node, "name", "") for node in marked) == ["script", "style"]
    assert "autoescape" not in template


def test_only_the_terminal_for_texts_of_others_is_used():
    modules = (ROOT / "workflow_scripts").rglob("*.py")
    assert [path.name for path in modules if "rich.console import Console" in path.read_text()] == ["terminal.py"]


# Words that the workflow itself chooses, options that are quoted where they are made, and commands of the site file.
UNQUOTED = {"weights", "first", "attempts", "plan", "setup", "launcher"}


def test_every_path_in_a_rules_command_is_quoted():
    rules = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
    commands = [block for file in rules for block in re.findall(r"\n +shell:\n((?: .*\n|\n)+)", file.read_text())]
    assert len(commands) > 25
    named = re.findall(r"\{(?:input|output|log|params|wildcards)(?:\.(\w+))?\}", "".join(commands))
    assert {*named} <= UNQUOTED
    assert not re.search(r'(?<!")\$(STUDY|RESULTS)', "".join(commands))


def test_text_in_a_drawn_figure_is_text(tmp_path):
    use_style()
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots()
    script = "<script>alert('from a label')</script>"
    ax.set_title(script)
    ax.plot([0, 1], label=script)
    ax.legend()
    figure.savefig(tmp_path / "f.svg", metadata={"Title": script})
    plt.close(figure)
    drawn = (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert "<script" not in drawn
    assert drawn.count("&lt;script&gt;") >= 2
