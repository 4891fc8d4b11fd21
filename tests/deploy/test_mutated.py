"""Damaged bundles and ONNX files end in one line: no crash, no hang, no stray file."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES, SECONDS = 300, 240


@pytest.fixture(scope="module")
def fuzz() -> Any:
    """The experiment's module; it is no part of the package."""
    sys.path.append(str(ROOT))
    from experiments.deploy import fuzz

    return fuzz


@pytest.fixture(scope="module")
def sources(fuzz: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found: list[Path] = fuzz.sources(tmp_path_factory.mktemp("sources"))
    return found


@pytest.mark.slow
def test_every_damaged_bundle_is_fine_or_refused_in_one_line(
    fuzz: Any, sources: list[Path], tmp_path: Path
) -> None:
    began, outcomes = time.monotonic(), []
    for seed in range(CASES):
        if time.monotonic() - began > SECONDS:
            break
        outcomes.append(fuzz.attack(sources[seed % len(sources)], seed, tmp_path / "case"))
    wrong = [(o.seed, o.mutation, o.wrong, o.told) for o in outcomes if o.wrong]
    assert not wrong
    ends = {ended for outcome in outcomes for ended in outcome.commands.values()}
    assert ends == {fuzz.FINE, fuzz.REFUSED}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", [771, 1169])
def test_what_damaged_files_say_of_themselves_is_cut(
    fuzz: Any, sources: list[Path], tmp_path: Path, case: int
) -> None:
    """An array in an archive, and a kind of outputs, have names of thousands of letters."""
    outcome = fuzz.attack(sources[case % len(sources)], case, tmp_path / "case")
    assert outcome.commands["verify"] == fuzz.REFUSED
    assert not outcome.wrong


def crash() -> None:
    import os

    os.abort()


def test_the_fuzzer_sees_what_goes_wrong(
    fuzz: Any, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command dies, one hangs, one leaves a file where it must not."""
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


def test_a_case_is_a_function_of_its_number(fuzz: Any, sources: list[Path], tmp_path: Path) -> None:
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
        if not found[0][0].startswith("golden"):  # an archive holds the time
            assert found[0] == found[1]
