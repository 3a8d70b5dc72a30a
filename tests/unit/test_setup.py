"""The Python for the environment; uv and the Pythons are stand-ins that record how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from workflow_scripts.common.files import write_text

ROOT = Path(__file__).parents[2]


def write_command(path: Path, text: str) -> None:
    write_text(path, text)
    path.chmod(0o755)


OF_CPU = ("cpu", "transformers-4.57.6-cpu")  # locks with PyTorch's CPU build of torch; that of vllm-0.25.1 has another


@pytest.mark.parametrize(
    ("lock", "installs"),
    [("cpu", True), ("cuda", True), ("tools", True), ("dev", False), (OF_CPU[1], False), ("vllm-0.25.1-cpu", False)],
)
@pytest.mark.parametrize("has_code", [True, False])
def test_the_command_is_installed_where_its_code_is(tmp_path, lock, installs, has_code):
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    if has_code:
        (tmp_path / "pyproject.toml").touch()
    for name in ("pip", "python", "uv"):
        write_command(tmp_path / "environment/bin" / name, f'#!/bin/bash\necho "{name} $*" >> "$PLACE/said"\n')
    command = ["/bin/bash", "envs/setup.sh", "install", lock, "environment"]
    subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PLACE": str(tmp_path)}, check=True)
    said = (tmp_path / "said").read_text()
    assert f"--requirement envs/{lock}.txt" in said
    assert ("--editable ." in said) == (installs and has_code)
    assert ("--torch-backend cpu" in said) == (lock in OF_CPU)
