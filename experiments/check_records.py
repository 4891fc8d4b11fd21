"""Check that every recorded row can be traced to a commit and to a current configuration.

``python -m experiments.check_records`` lists each commit of a row, of any experiment, that is not
in the history or lacks the script that records the row, unless ``lost_commits.toml`` lists it. It
also lists each configuration that is unknown, and each that is no longer that of its script and is
not marked as superseded with the differences. With ``--mark`` it writes these marks, and it adds
today's settings where rows were recorded with them before settings were kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.configuration import Configuration, Configurations, differences, lost_commits
from experiments.record import Results, git, read_report, read_rows
from hwnas.atomic import locked
from hwnas.errors import RunError
from hwnas.hashing import content_hash

__all__ = ["Script", "recorded_files", "scripts_of", "unknown_commits", "wrong"]

FOLDER = Path(__file__).parent
_DIGITS = 12  # length of a commit's hash in rows
_NO_HISTORY = "the git history here is incomplete"


@dataclass(frozen=True)
class Script:
    """Script that records the rows of a file.

    Attributes:
        module: Module to run with ``python -m``.
        options: Command-line options, as the experiment's README states them.
    """

    module: str
    options: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Path of the script in the repository."""
        return f"experiments/{self.module.replace('.', '/')}.py"


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
    "precision_front/results.jsonl": tuple(
        Script("precision_front.run", ("--cases", case)) for case in ("cifar10", "fashion_mnist")
    ),
    "photographs/results.jsonl": tuple(
        Script("photographs.run", ("--minutes", minutes)) for minutes in ("15", "45", "120")
    ),
    "photographs/ablation/width-1/results.jsonl": (
        Script("photographs.ablation.run", ("--width", "1")),
    ),
    "latency_zoo/results.jsonl": (Script("latency_zoo.held_out"),),
}
"""Scripts of the files that are not recorded by the module of their name without options; empty
where a former version of a script recorded the file."""


def recorded_files() -> list[Path]:
    """Return all files of recorded rows."""
    return sorted(FOLDER.rglob("*.jsonl"))


def scripts_of(file: Path) -> Sequence[Script]:
    """Return the scripts that record a file, one for each set of options; empty if gone."""
    name = file.relative_to(FOLDER).as_posix().replace("observations", "results")
    if name in _BY_FILE:
        return _BY_FILE[name]
    stem = "run" if file.stem in ("results", "observations") else file.stem
    return (Script(".".join([*file.parent.relative_to(FOLDER).parts, stem])),)


class _Found(BaseException):
    """Exception that ends a script once its configuration is known."""


def settings_of(script: Script, file: str) -> Mapping[str, Any]:
    """Return the current settings of a script for a file of rows, without doing its work."""
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
        warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
        runpy.run_module(name, run_name="__main__", alter_sys=False)
    if file not in found:
        raise RunError(f"{name} ended before it gave its settings for {file}")
    return found[file]


def wrong(file: Path, mark: bool = False) -> Iterator[str]:
    """Yield each problem of a file's configurations, as one line of text.

    Args:
        file: File of recorded rows.
        mark: Mark configurations that are superseded, and unmark those that no longer are.
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
        if known.superseded == changed:
            continue
        if mark:
            with locked(file.parent):
                configurations.put(hashed, replace(known, superseded=changed))
        elif changed and known.superseded:
            yield f"{place}: configuration {hashed} differs in more than its mark says: {changed}"
        elif changed:
            yield (
                f"{place}: configuration {hashed} is not the current one and not marked: {changed}"
            )
        else:
            yield f"{place}: configuration {hashed} is marked as superseded, but is the current one"


def unknown_commits() -> list[str] | None:
    """Return the problems of the recorded commits, one line of text each.

    Returns:
        The commits that are not in the history of the current one, or lack the script that records
        their rows; None where git cannot tell, e.g. in a copy or a shallow clone.
    """
    if git("rev-parse", "--is-shallow-repository") != "false":
        return None
    history = {commit[:_DIGITS] for commit in (git("rev-list", "HEAD") or "").split()}
    lines = []
    for file in sorted(FOLDER.rglob("*.json*")):
        place = file.relative_to(FOLDER)
        for commit in sorted(_commits(file) - lost_commits().keys()):
            if commit not in history:
                lines.append(f"{place}: commit {commit} is not in the history")
                continue
            lines += [
                f"{place}: commit {commit} has no {path}"
                for path in sorted({script.path for script in scripts_of(file)})
                if git("cat-file", "-e", f"{commit}:{path}") is None
            ]
    return lines


def _commits(file: Path) -> set[str]:
    """Return the commits of the rows of a file, or the commit of a report file."""
    if file.suffix == ".jsonl":
        return {row.provenance.commit for row in read_rows(file) if row.provenance}
    report = read_report(file)
    return {report.commit} if report else set()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.check_records", description=__doc__
    )
    parser.add_argument("--mark", action="store_true", help="mark superseded configurations")
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
