"""`hwnas kernels suite` in a process of its own, and its wrong arguments."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Answer

from hwnas.kernels.codegen.chains import CHAINS
from hwnas.kernels.operators.registry import OPERATORS


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hwnas.cli", "kernels", "suite", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "operators",
    [
        pytest.param(("two_four", "pointwise"), marks=pytest.mark.slow, id="two"),
        pytest.param((*OPERATORS, *CHAINS), marks=pytest.mark.exhaustive, id="all"),
    ],
)
def test_suite_command_finds_operators_correct_and_without_spills(
    operators: tuple[str, ...], tmp_path: Path
) -> None:
    names = operators if len(operators) == 2 else ()  # by default, all
    done = suite("--json", str(tmp_path / "rows.json"), *names)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["op"] for row in rows} == set(operators)
    assert all(row["correct"] and row["spills"] == 0 for row in rows)
    assert all(name in done.stdout for name in operators if name in OPERATORS)
    two_four = [row for row in rows if row["op"] == "two_four"]
    assert len(two_four) == 9
    assert all(row["error"] < 0.1 for row in two_four)
    shapes: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for row in rows:
        shapes.setdefault((row["op"], row["dtype"]), set()).add(tuple(row["shape"]))
    assert all(len(each) >= 2 for each in shapes.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pointwse"], "unknown operator 'pointwse'; did you mean 'pointwise'?"),
        (["--backend", "tritn"], "unknown backend 'tritn'; did you mean 'triton'?"),
        (["--backend", "os:path"], "lacks name, unavailable or prepare"),
        (["--device", "h200"], "unknown accelerator 'h200'; did you mean 'nvidia-h200'?"),
    ],
)
def test_suite_command_refuses_wrong_arguments(
    hwnas: Callable[..., Answer], arguments: list[str], message: str
) -> None:
    hwnas("kernels", "suite", *arguments).refused(message)
