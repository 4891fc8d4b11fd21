"""Experiments are not part of the package and are imported from the root of the repository."""

import os
import runpy
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

sys.path.append(str(Path(__file__).parents[2]))


@dataclass(frozen=True)
class Ended:
    """Exit status and output of an experiment."""

    status: int
    out: str
    err: str


@pytest.fixture
def experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Return a function that runs an experiment in this process, by its module and options.

    Planned jobs measure the training speed of the machine for a moment only.
    """
    from hwnas.planning import measure_speeds

    monkeypatch.setattr("hwnas.planning.rehearsal._SECONDS", 0.2)
    brief = partial(measure_speeds, seconds=1.0)
    monkeypatch.setattr("hwnas.experiment.planned.measure_speeds", brief)
    monkeypatch.chdir(Path(__file__).parents[2])

    def run(module: str, *options: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", [module, *map(str, options)])
        capsys.readouterr()
        status = 0
        # Experiments set variables, such as the home, which later tests must not inherit.
        with patch.dict(os.environ), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'experiments.*' found in sys.modules")
            try:
                runpy.run_module(f"experiments.{module}", run_name="__main__", alter_sys=True)
            except SystemExit as ended:
                status = int(ended.code or 0)
        told = capsys.readouterr()
        return Ended(status, told.out, told.err)

    return run


@pytest.fixture
def refusal(experiment: Callable[..., Ended]) -> Callable[..., str]:
    """Return a function that runs an experiment that must fail, and returns its error line."""

    def refused(name: str, *options: str | Path) -> str:
        ended = experiment(f"{name}.run", *options)
        assert ended.status == 2, ended.err
        assert ended.err.count("\n") == 1, ended.err
        return ended.err

    return refused


def pytest_configure(config: pytest.Config) -> None:
    """Select Triton's interpreter, which must happen before kernels are defined."""
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
