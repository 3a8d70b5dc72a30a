"""What ruff's rules on safety do not see: servers on public addresses, and text that becomes markup."""

from pathlib import Path

import jinja2
import yaml

from workflow_scripts.present.plot import use_style

ROOT = Path(__file__).parents[2]
EVERYWHERE = {"0.0.0.0", "::", "[::]"}


def test_every_server_of_the_catalogue_is_started_on_loopback():
    for name, entry in yaml.safe_load((ROOT / "config" / "endpoints.yaml").read_text(encoding="utf-8")).items():
        if command := entry.get("command"):
            assert not [word for word in command if any(address in word for address in EVERYWHERE)], name
            assert [word for word in command if word.endswith("=127.0.0.1") or "=127.0.0.1:" in word], name


def test_the_page_marks_nothing_as_markup_but_its_own_style_and_script():
    template = (ROOT / "report" / "page.html.j2").read_text(encoding="utf-8")
    parsed = jinja2.Environment(autoescape=True).parse(template)
    marked = [node.node for node in parsed.find_all(jinja2.nodes.Filter) if node.name == "safe"]
    assert sorted(getattr(node, "name", "") for node in marked) == ["script", "style"]
    assert "autoescape" not in template


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
