"""The Python for the environment; uv and the Pythons are stand-ins that record how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from workflow_scripts.common.files import write_text

ROOT = Path(__file__).parents[2]
PYTHON311 = '#!/bin/bash\n[ "$1" = -c ] && exit 0\necho "${0##*/} $*" >> "$PLACE/said"\nexit 3\n'
ANOTHER = PYTHON311.replace("exit 0", "exit 1")
# It fetches what lies in the folder `mirror`, and finds what it has fetched.
UV = """#!/bin/bash
echo "uv $*" >> "$PLACE/said"
case $2 in
find) [ -e "$PLACE/fetched/python" ] && echo "$PLACE/fetched/python" ;;
install) mv "$PLACE/mirror" "$PLACE/fetched" ;;
esac
"""
FIND = "uv python find --system 3.11"


def write_command(path: Path, text: str) -> None:
    write_text(path, text)
    path.chmod(0o755)


@pytest.mark.parametrize("commands", [{}, {"python3.11": ANOTHER}], ids=["none", "a shim that leads nowhere"])
def test_where_it_is_missing_uv_fetches_it(tmp_path, commands):
    """Nothing else is on PATH than these commands."""
    write_command(tmp_path / "mirror/python", PYTHON311)
    for name, text in ({"python3": ANOTHER, "uv": UV} | commands).items():
        write_command(tmp_path / "bin" / name, text)
    for tool in ("mktemp", "mv", "rm"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    command = ["/bin/bash", "envs/setup.sh", "install", "uv", str(tmp_path / "environment")]
    environment = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path), "PLACE": str(tmp_path)}
    subprocess.run(command, cwd=ROOT, env=environment)
    said = (tmp_path / "said").read_text().replace(str(tmp_path), "PLACE").splitlines()
    assert said == [FIND, "uv python install 3.11", FIND, "python -m venv PLACE/environment"]


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
