"""What the code must not do, checked in its syntax: load executable data, listen publicly, mark text as markup."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
import yaml

from workflow_scripts.present.plot import use_style

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("workflow_scripts", "benchmarks") for path in (ROOT / room).rglob("*.py"))
WORKFLOW = [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]

UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "torch.load": "unpickles",
    "pd.read_pickle": "unpickles",
    "pandas.read_pickle": "unpickles",
    "yaml.load": "may make any object; yaml.safe_load does not",
    "yaml.load_all": "may make any object",
    "yaml.full_load": "may make many objects",
    "yaml.unsafe_load": "makes any object",
    "eval": "runs text",
    "exec": "runs text",
    "os.system": "runs text in a shell",
    "os.popen": "runs text in a shell",
}
EVERYWHERE = {"0.0.0.0", "::", "[::]"}
# Runs this project's own modules, changed in small ways, to see whether a test notices.
ALLOWED = {"benchmarks/mutants.py": ["exec runs text"]}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".removeprefix(".")
    return node.id if isinstance(node, ast.Name) else ""


def faults_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        imported = []
        if isinstance(node, ast.Import):
            imported = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        yield from (f"{name} unpickles" for name in imported if name.partition(".")[0] in UNPICKLES)
        if isinstance(node, ast.Constant) and node.value in EVERYWHERE:
            yield f"{node.value} is every address of the machine"
        if isinstance(node, ast.Call):
            yield from _faults_of_call(node)


def _faults_of_call(call: ast.Call) -> Iterator[str]:
    name = dotted(call.func)
    if name in FORBIDDEN_CALLS:
        yield f"{name} {FORBIDDEN_CALLS[name]}"
    options = {option.arg: option.value for option in call.keywords}
    for risky in ("allow_pickle", "shell"):
        if risky in options and not (isinstance(options[risky], ast.Constant) and options[risky].value is False):
            yield f"{name}({risky}=...)"
    if name.endswith("np.load") or name == "numpy.load":
        yield "numpy.load reads files that may hold pickles"
    if name.endswith(".bind") and call.args and isinstance(call.args[0], ast.Tuple):
        host = call.args[0].elts[0]
        if isinstance(host, ast.Constant) and host.value != "127.0.0.1":
            yield f"{name} listens on {host.value!r}"
    if name.endswith("Environment") and name.startswith("jinja2"):
        escaped = options.get("autoescape")
        if not (isinstance(escaped, ast.Constant) and escaped.value is True):
            yield "jinja2 without autoescape=True"
    if name.rpartition(".")[2] == "Markup":
        yield "Markup marks text as markup"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "np.load('x.npy', allow_pickle=True)",
        "subprocess.run('ls', shell=True)",
        "eval('1')",
        "host = '0.0.0.0'",
        "sock.bind(('', 80))",
        "jinja2.Environment(loader=x)",
        "markupsafe.Markup(text)",
    ],
)
def test_the_search_finds_what_it_is_for(source):
    assert list(faults_in(source))


@pytest.mark.parametrize("source", ["yaml.safe_load(text)", "sock.bind(('127.0.0.1', 0))", "subprocess.run(['ls'])"])
def test_the_search_leaves_what_is_safe(source):
    assert list(faults_in(source)) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_does_it(path):
    allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), [])
    assert list(faults_in(path.read_text(encoding="utf-8"))) == allowed


@pytest.mark.parametrize("path", WORKFLOW, ids=lambda path: path.name)
def test_no_rule_does_it(path):
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("pickle", "yaml.load", "0.0.0.0", "shell=True") if word in text]


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
