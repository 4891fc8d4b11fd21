"""Commands on searches: start, resume, specialise, inspect, export."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hwnas.cli.app import (
    MORE,
    SEARCHES,
    Json,
    RunPath,
    Targets,
    app,
    fail,
    out,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwnas.experiment import Experiment
    from hwnas.progress import Reporter


RayAddress = Annotated[
    str | None,
    typer.Option(help="Address of a running Ray cluster: HOST:PORT, or auto for the local one"),
]


@app.command(rich_help_panel=SEARCHES)
def search(
    recipe: Annotated[
        Path,
        typer.Argument(help="A TOML recipe, or images: a folder, or an .npz file"),
    ],
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME if not given")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Time budget of the whole job, in minutes; open settings are planned for it"
        ),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="With images: target to be fast on; may be repeated")
    ] = None,
    limit_ms: Annotated[
        float | None, typer.Option(help="With images: limit on the latency of a network, in ms")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change the recipe: table.key=value, e.g. search.trials=500; may be repeated",
        ),
    ] = None,
    ray_address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Search for networks: a recipe in, measured bundles of the finalists out."""
    experiment = _experiment(recipe, minutes, target or (), limit_ms, set_ or ())
    launch(experiment, run, ray_address, as_json)


def launch(
    experiment: Experiment, run: Path | None, ray_address: str | None, as_json: bool
) -> None:
    """Run an experiment in a folder, runs/NAME if None, and print its result."""
    folder = run or Path("runs", experiment.recipe.name)
    with _resumable(folder) as reporter:
        _show(experiment.run(folder, reporter, ray_address), as_json)


def _experiment(
    path: Path,
    minutes: float | None,
    targets: Sequence[str],
    limit_ms: float | None,
    overrides: Sequence[str],
) -> Experiment:
    """Return the experiment of a recipe, or of images and a budget."""
    from hwnas.errors import ConfigError
    from hwnas.experiment import Experiment
    from hwnas.experiment.from_images import DEFAULT_TARGET, is_image_source

    if is_image_source(path):
        if minutes is None:
            raise ConfigError(
                f"{path} holds images; say how long the job may take, such as --minutes 45, or "
                "give a recipe"
            )
        return Experiment.of_images(
            path, minutes, targets or (DEFAULT_TARGET,), limit_ms, overrides
        )
    if targets or limit_ms is not None:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give a folder of images")
        raise ConfigError(
            "--target and --limit-ms need images; a recipe has them in [[objective]], which --set "
            "changes, e.g. --set objective.1.limit=5"
        )
    given = () if minutes is None else (f"run.minutes={minutes}",)
    try:
        return Experiment.load(path, (*given, *overrides))
    except ConfigError as error:
        if (hint := _hint(path)) is None:
            raise
        raise ConfigError(f"{error}; {hint}") from error


def _hint(path: Path) -> str | None:
    """Return what a user may have meant by a file that is no recipe, by its name."""
    from hwnas.search.data.layouts.text_files import is_text

    if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
        return "for images, give their folder"
    if is_text(path) and path.suffix != ".toml":
        return f'for a text to learn from, give a recipe with data.source = "text:{path}"'
    return None


@app.command(rich_help_panel=SEARCHES)
def resume(
    run: RunPath,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change the recipe of the run: table.key=value; may be repeated"
        ),
    ] = None,
    ray_address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Continue a run; finished results of the current inputs are kept."""
    from hwnas.experiment import resume

    with _resumable(run) as reporter:
        _show(resume(run, reporter, ray_address, set_ or ()), as_json)


@app.command(rich_help_panel=SEARCHES)
def specialise(run: RunPath, target: Targets, as_json: Json = False) -> None:
    """Search for further targets with the weights and accuracies that a run already has."""
    from hwnas.experiment import specialise

    with _resumable(run) as reporter:
        summaries = specialise(run, target, reporter)
    if as_json:
        print_json([summary.to_json() for summary in summaries])
        return
    for summary in summaries:
        _show(summary, as_json)


@app.command(rich_help_panel=SEARCHES)
def status(run: RunPath, as_json: Json = False) -> None:
    """Show the progress of a run, and which of its results are stale."""
    from hwnas.experiment import status

    found = status(run)
    if as_json:
        print_json(found)
        return
    from hwnas.cli.terminal import table_of

    stale = found["stale"]
    rows = [
        [
            name,
            "stale" if name in stale else stage["state"],
            f"{stage['wall_s']:.1f}",
            f"{stage['cpu_s']:.1f}",
        ]
        for name, stage in found["stages"].items()
    ]
    out.print(
        table_of(["stage", "", "wall s", "CPU s"], rows, f"{found['name']}: {found['state']}")
    )
    for name, reasons in stale.items():
        out.print(f"{name} is stale: {'; '.join(reasons)}", soft_wrap=True, markup=False)
    if found["unnamed"]:
        out.print(
            f"an older version of hwnas made this run; `hwnas resume {run}` checks whether its "
            "inputs have changed",
            soft_wrap=True,
            markup=False,
        )
    out.print(f"{found['trials']} of {found['trials_wanted']} candidates evaluated")
    for rung in found["rungs"]:
        out.print(
            f"  {rung['evaluated']} at {rung['share']:.0%} of the cost, "
            f"{rung['promoted']} of them promoted"
        )
    failed = found["failed"]
    if failed:
        last = failed[-1]
        out.print(
            f"{len(failed)} failed; the last one, {last['candidate']}: {last['kind']}, "
            f"{last['reason']}",
            soft_wrap=True,
            markup=False,
        )
    if found["state"] != "finished":
        objects = "".join(f", {kind}=..." for kind in found["objects"])
        command = f"hwnas.open({str(run)!r}{objects}).resume() in Python"
        out.print(
            f"next: {command if objects else f'hwnas resume {run}'}", soft_wrap=True, markup=False
        )


@app.command(rich_help_panel=SEARCHES)
def report(run: RunPath, as_json: Json = False) -> None:
    """Write the report of a run again."""
    from hwnas.experiment import rewrite_reports

    paths = rewrite_reports(run)
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        out.print(str(path), soft_wrap=True, markup=False)


@app.command(rich_help_panel=MORE)
def spaces(as_json: Json = False) -> None:
    """List the search spaces by name, with their presets."""
    from hwnas.cli.terminal import table_of
    from hwnas.search_spaces.registry import spaces

    found = spaces()
    if as_json:
        print_json([asdict(space) for space in found])
        return
    rows = [
        [
            f"{s.name} ({s.preset})" if s.preset else s.name,
            "x".join(map(str, s.image_shape)),
            str(s.choices),
            f"{s.size:.2g}",
        ]
        for s in found
    ]
    out.print(table_of(["name (preset)", "images", "choices", "networks"], rows, "Search spaces"))
    out.print('your own: [space] name = "package.module:object"', markup=False, style="dim")


def _show(summary: Any, as_json: bool) -> None:
    if as_json:
        print_json(summary.to_json())
        return
    from hwnas.cli.terminal import print_summary

    print_summary(out, summary)


class _resumable:
    """Context that ends a run on Ctrl-C or SIGTERM, and prints how to resume it."""

    def __init__(self, run: Path) -> None:
        from hwnas.progress import make_reporter

        self._run = run
        self._reporter = make_reporter()

    def __enter__(self) -> Reporter:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._interrupt) for number in numbers}
        return self._reporter

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and (self._run / "run.json").exists():
            fail(f"interrupted; `hwnas resume {self._run}` continues from here", 130)

    def _interrupt(self, *_: object) -> NoReturn:
        self._reporter.interrupted = True
        raise KeyboardInterrupt
