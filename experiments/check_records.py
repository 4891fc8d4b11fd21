"""Check that what is recorded can be traced: to a commit, and to a configuration that is today's.

``python -m experiments.check_records`` names every row, of any experiment, whose commit is neither
in the history nor listed in ``lost_commits.toml``, and every configuration that is not known, or
that is no longer that of its script and not marked as superseded. With ``--mark`` it writes these
marks,
and settings of today that rows were recorded with before settings were kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.configuration import Configuration, Configurations, differences, lost_commits
from experiments.record import ROOT, Results, read_rows
from hwnas.atomic import locked
from hwnas.content import content_hash
from hwnas.errors import RunError

__all__ = ["Script", "recorded_files", "scripts_of", "unknown_commits", "wrong"]

FOLDER = Path(__file__).parent
_NO_HISTORY = "there is no whole git history here"


@dataclass(frozen=True)
class Script:
    """What records the rows of a file.

    Attributes:
        module: To be run with ``python -m``.
        options: That its page names.
    """

    module: str
    options: tuple[str, ...] = ()


_CIFAR10 = "experiments/cifar10/mobilenet.toml"
_BY_FILE: Mapping[str, Sequence[Script]] = {
    "deploy/cascade/deciding_by_itself.jsonl": (),
    "deploy/int8/results.jsonl": (
        Script("deploy.int8.run", ("--set", "train.budget_minutes=5")),
        Script(
            "deploy.int8.run",
            ("--case", "cifar10", "--recipe", _CIFAR10, "--set", "train.budget_minutes=5"),
        ),
    ),
    "latency_zoo/results.jsonl": (Script("latency_zoo.held_out"),),
}
"""Scripts of files that are not recorded by the module of their name without options; none of
those that a former version of a script recorded."""


def recorded_files() -> list[Path]:
    """Return all files of recorded rows."""
    return sorted(FOLDER.rglob("*.jsonl"))


def scripts_of(file: Path) -> Sequence[Script]:
    """Return what records a file: a script for each set of options; none where that is gone."""
    name = file.relative_to(FOLDER).as_posix().replace("observations", "results")
    if name in _BY_FILE:
        return _BY_FILE[name]
    stem = "run" if file.stem in ("results", "observations") else file.stem
    return (Script(".".join([*file.parent.relative_to(FOLDER).parts, stem])),)


class _Found(BaseException):
    """Ends a script once its configuration is known."""


def settings_of(script: Script, file: str) -> Mapping[str, Any]:
    """Return what a script sets today for a file of rows, without doing its work."""
    found: dict[str, Mapping[str, Any]] = {}

    def noted(results: Results, path: Path, config: Mapping[str, Any]) -> None:
        found[path.name] = dict(config)
        if path.name == file:
            raise _Found

    name = f"experiments.{script.module}"
    with (
        patch.object(Results, "__init__", noted),
        patch.object(sys, "argv", [name, *script.options]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(_Found, SystemExit),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # that the module is imported already
        runpy.run_module(name, run_name="__main__", alter_sys=False)
    if file not in found:
        raise RunError(f"{name} ended before it said what it sets for {file}")
    return found[file]


def wrong(file: Path, mark: bool = False) -> Iterator[str]:
    """Yield what is wrong with the configurations of a file, a line each.

    Args:
        file: Of recorded rows.
        mark: Mark what is superseded, or is no longer.
    """
    configurations = Configurations(file.parent)
    recorded = {row.provenance.config for row in read_rows(file) if row.provenance}
    today = [settings_of(script, file.name) for script in scripts_of(file)]
    place = file.relative_to(FOLDER)
    for hashed in sorted(recorded):
        known = configurations.get(hashed)
        if known is None:
            same = [now for now in today if content_hash(dict(now)) == hashed]
            if not (mark and same):
                yield f"{place}: configuration {hashed} is not in configurations.json"
                continue
            known = Configuration(same[0])
            with locked(file.parent):
                configurations.put(hashed, known)
        if not today or (known.superseded and not known.settings):  # nothing to compare
            continue
        apart = min((list(differences(known.settings, now)) for now in today), key=len)
        changed = "; ".join(apart) or None
        if known.superseded == changed or (changed and known.superseded and not mark):
            continue
        if mark:
            with locked(file.parent):
                configurations.put(hashed, replace(known, superseded=changed))
        elif changed:
            yield f"{place}: configuration {hashed} is not today's and not marked: {changed}"
        else:
            yield f"{place}: configuration {hashed} is marked as superseded, but it is today's"


def unknown_commits() -> list[str] | None:
    """Return recorded commits that do not exist; None where git cannot tell, e.g. in a copy."""
    commits: dict[str, Path] = {}
    for file in recorded_files():
        for row in read_rows(file):
            if row.provenance:
                commits.setdefault(row.provenance.commit, file)
    try:
        shallow = _git("rev-parse", "--is-shallow-repository")
        if shallow.returncode or shallow.stdout.strip() != "false":
            return None
        lost = lost_commits()
        return [
            f"{file.relative_to(FOLDER)}: commit {commit} is not in the history"
            for commit, file in commits.items()
            if commit not in lost and _git("merge-base", "--is-ancestor", commit, "HEAD").returncode
        ]
    except OSError:  # git is not installed
        return None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.check_records", description=__doc__
    )
    parser.add_argument("--mark", action="store_true", help="mark what is superseded")
    mark: bool = parser.parse_args().mark
    lines = [line for file in recorded_files() for line in wrong(file, mark)]
    commits = unknown_commits()
    if commits is None:
        print(f"commits are not checked: {_NO_HISTORY}", file=sys.stderr)
    lines += commits or []
    for line in lines:
        print(line)
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
