"""hwnas without Triton, which only the kernels need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDING = """
import sys


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.split(".")[0] == "triton" else self.finder.find_spec(name, *rest)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Hide Triton from the processes of a test."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hwnas.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_kernel_commands_say_what_to_install(environment: dict[str, str]) -> None:
    found = run(environment, "kernels", "suite")
    assert found.returncode == 2
    assert found.stderr.splitlines() == [
        "error: hwnas kernels cannot be used: triton is not installed; "
        "run: pip install 'hwnas[kernels]'"
    ]


def test_plugins_are_listed_except_the_operators(environment: dict[str, str]) -> None:
    found = run(environment, "plugins")
    assert found.returncode == 0, found.stderr
    assert "mobilenet" in found.stdout
    assert "slim_attention" not in found.stdout


def test_public_names_are_importable(environment: dict[str, str]) -> None:
    code = "import hwnas; [getattr(hwnas, name) for name in hwnas.__all__]"
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert found.returncode == 0, found.stderr
