"""The experiments are no part of the package: they are imported from the root of the repository."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Starts an experiment in this process, and gives the line with which it refuses to work."""

    def started(name: str, *options: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"experiments.{name}.run").main()
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert told.count("\n") == 1, told
        return told

    return started


def pytest_configure(config: pytest.Config) -> None:
    """Kernels run in Triton's interpreter, which must be said before they are defined."""
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
