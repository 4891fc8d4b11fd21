"""Experiments are not part of the package and are imported from the root of the repository."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that runs an experiment in this process and returns its error line."""

    def started(name: str, *options: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        # Experiments set variables, such as the home, which later tests must not inherit.
        with patch.dict(os.environ), pytest.raises(SystemExit) as ended:
            importlib.import_module(f"experiments.{name}.run").main()
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert told.count("\n") == 1, told
        return told

    return started


def pytest_configure(config: pytest.Config) -> None:
    """Select Triton's interpreter, which must happen before kernels are defined."""
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
