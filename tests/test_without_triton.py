"""hwnas without Triton, which only the kernels need."""

import json
import os
import subprocess
import sys

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


RUN = """
import contextlib, io, json, sys
import hwnas
from hwnas.cli import main

for name in hwnas.__all__:
    getattr(hwnas, name)
found = {}
for command in ("kernels suite", "plugins"):
    sys.argv = ["hwnas", *command.split()]
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    found[command] = status or 0, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""
"""Imports all public names, and runs two commands."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Status, output and errors of commands in a process from which Triton is hidden."""
    folder = tmp_path_factory.mktemp("hiding")
    (folder / "sitecustomize.py").write_text(HIDING)
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"public names are importable: {done.stderr}"
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_kernel_commands_say_what_to_install(answers: dict[str, tuple[int, str, str]]) -> None:
    status, _, error = answers["kernels suite"]
    assert status == 2
    assert error.splitlines() == [
        "error: hwnas kernels cannot be used: triton is not installed; "
        "run: pip install 'hwnas[kernels]'"
    ]


@pytest.mark.slow
def test_plugins_are_listed_except_the_operators(answers: dict[str, tuple[int, str, str]]) -> None:
    status, listed, error = answers["plugins"]
    assert status == 0, error
    assert "mobilenet" in listed
    assert "slim_attention" not in listed
