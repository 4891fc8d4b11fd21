"""Experiments are not part of the package and are imported from the root of the repository."""

import os
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture
def experiment(
    monkeypatch: pytest.MonkeyPatch, in_process: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs an experiment in this process, by its module and options."""
    monkeypatch.chdir(Path(__file__).parents[2])

    def run(module: str, *options: str | Path) -> Any:
        def main() -> None:
            runpy.run_module(f"experiments.{module}", run_name="__main__", alter_sys=True)
            sys.exit()

        # Experiments set variables, such as the home, which later tests must not inherit.
        with patch.dict(os.environ), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'experiments.*' found in sys.modules")
            return in_process(main, module, *options)

    return run


@pytest.fixture
def refusal(experiment: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that runs an experiment that must fail, and returns its error line."""

    def refused(name: str, *options: str | Path) -> str:
        ended = experiment(f"{name}.run", *options)
        assert ended.status == 2, ended.err
        assert ended.err.count("\n") == 1, ended.err
        return str(ended.err)

    return refused


def pytest_configure(config: pytest.Config) -> None:
    """Select Triton's interpreter, which must happen before kernels are defined."""
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
