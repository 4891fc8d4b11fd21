"""Damaged bundles and ONNX files give a one-line error: no crash, no hang, no stray file."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES, SECONDS = 300, 240


@pytest.fixture(scope="module")
def fuzz() -> Any:
    """Module of the experiment, which is not part of the package."""
    sys.path.append(str(ROOT))
    from experiments.deploy import fuzz

    return fuzz


@pytest.fixture(scope="module")
def sources(fuzz: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found: list[Path] = fuzz.sources(tmp_path_factory.mktemp("sources"))
    return found


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(15, marks=pytest.mark.slow), pytest.param(SECONDS, marks=pytest.mark.exhaustive)],
)
def test_damaged_bundles_work_or_are_refused_in_one_line(
    fuzz: Any, sources: list[Path], tmp_path: Path, seconds: float
) -> None:
    began, outcomes = time.monotonic(), []
    for seed in range(CASES):
        if time.monotonic() - began > seconds:
            break
        outcomes.append(fuzz.attack(sources[seed % len(sources)], seed, tmp_path / "case"))
    wrong = [(o.seed, o.mutation, o.wrong, o.told) for o in outcomes if o.wrong]
    assert not wrong
    ends = {ended for outcome in outcomes for ended in outcome.commands.values()}
    assert ends == {fuzz.FINE, fuzz.REFUSED}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", [771, 1169])
def test_verify_refuses_damaged_bundles_with_a_short_message(
    fuzz: Any, sources: list[Path], tmp_path: Path, case: int
) -> None:
    """An array of golden.npz and a kind of outputs have names of thousands of letters."""
    outcome = fuzz.attack(sources[case % len(sources)], case, tmp_path / "case")
    assert outcome.commands["verify"] == fuzz.REFUSED
    assert not outcome.wrong


def crash() -> None:
    import os

    os.abort()


@pytest.mark.slow
def test_fuzzer_reports_crashes_hangs_and_stray_files(
    fuzz: Any, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command crashes, one hangs, and one leaves a file behind."""
    monkeypatch.setattr(fuzz.Bundle, "verify", lambda bundle: crash())
    monkeypatch.setattr(fuzz, "_run", lambda bundle, image: time.sleep(60))
    monkeypatch.setattr(fuzz, "measure", lambda models, *rest: (tmp_path / "case/a").touch())
    monkeypatch.setattr(fuzz, "mutate", lambda bundle, seed: "nothing")
    outcome = fuzz.attack(sources[0], 0, tmp_path / "case", fuzz.Limits(seconds=2))
    assert outcome.wrong == {
        "verify": "crashed with SIGABRT",
        "run": "hung",
        "measure": "left or changed a file",
    }


@pytest.mark.slow
def test_fuzzer_makes_the_same_case_from_the_same_seed(
    fuzz: Any, sources: list[Path], tmp_path: Path
) -> None:
    import shutil

    from experiments.deploy.mutations import mutate

    for seed in range(40):
        found = []
        for copy in ("a", "b"):
            folder = tmp_path / copy / "bundle"
            shutil.copytree(sources[seed % 2] / "bundle", folder)
            word = mutate(folder, seed)
            files = {p.name: p.is_file() and p.read_bytes() for p in folder.iterdir()}
            found.append((word, files))
            shutil.rmtree(tmp_path / copy)
        if not found[0][0].startswith("golden"):  # an archive contains its time
            assert found[0] == found[1]
