"""The command line: each command reads its arguments, calls one function and prints."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from hwnas.errors import HwnasError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Networks searched for a device, measured on it, packed ready to deploy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Benchmarks of hwnas itself.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")]
Targets = Annotated[
    list[str], typer.Option("--target", help="E.g. cpu-onnxruntime-fp32-b1-t1; may be repeated.")
]

_UsageError: Any = typer.BadParameter.__base__  # wherever this version of Typer keeps it

out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


@app.command()
def search(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe.")],
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME if not given.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="table.key=value, e.g. search.trials=500.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for networks: a recipe in, a measured family of bundles out."""
    from hwnas.experiment import Experiment

    experiment = Experiment.load(recipe, set_ or ())
    folder = run or Path("runs", experiment.recipe.name)
    with _resumable(folder):
        _show(experiment.run(folder), as_json)


@app.command()
def resume(run: RunPath, as_json: Json = False) -> None:
    """Go on with an interrupted run; nothing that was finished is done again."""
    from hwnas.experiment import resume

    with _resumable(run):
        _show(resume(run), as_json)


@app.command()
def specialise(run: RunPath, target: Targets, as_json: Json = False) -> None:
    """Search for further targets with the weights and accuracies that a run already has."""
    from hwnas.experiment import specialise

    with _resumable(run):
        summaries = specialise(run, target)
    if as_json:
        _print_json([summary.to_json() for summary in summaries])
        return
    for summary in summaries:
        _show(summary, as_json)


@app.command()
def status(run: RunPath, as_json: Json = False) -> None:
    """How far a run is."""
    from hwnas.experiment import status

    found = status(run)
    if as_json:
        _print_json(found)
        return
    from hwnas.terminal import table_of

    rows = [
        [name, stage["state"], f"{stage['wall_s']:.1f}", f"{stage['cpu_s']:.1f}"]
        for name, stage in found["stages"].items()
    ]
    out.print(
        table_of(["stage", "", "wall s", "CPU s"], rows, f"{found['name']}: {found['state']}")
    )
    out.print(f"{found['trials']} of {found['trials_wanted']} candidates evaluated")
    if found["state"] != "finished":
        out.print(f"next: hwnas resume {run}", soft_wrap=True, markup=False)


@app.command()
def report(run: RunPath, as_json: Json = False) -> None:
    """Write the report of a run anew."""
    from hwnas.experiment import rewrite_reports

    paths = rewrite_reports(run)
    if as_json:
        _print_json([str(path) for path in paths])
        return
    for path in paths:
        out.print(str(path), soft_wrap=True, markup=False)


@app.command()
def export(
    run: RunPath,
    to: Annotated[Path, typer.Option("--out", help="Folder to make; must not exist.")],
    pick: Annotated[
        str | None, typer.Option(help="knee, fastest, most-accurate or a network's id.")
    ] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Only networks measured at most this slow.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="A target that the run was specialised for.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the bundle of one winner out of a run, making it first if need be."""
    from hwnas.experiment import export

    bundle = export(run, to, pick, max_latency_ms, target)
    if as_json:
        _print_json(bundle.description)
        return
    out.print(f"{to}: network {bundle.architecture.id}, verified", soft_wrap=True, markup=False)
    out.print(f"next: hwnas run {to} image.png", soft_wrap=True, markup=False)


@app.command()
def verify(bundle: BundlePath, as_json: Json = False) -> None:
    """Check a bundle: checksums, ONNX, golden outputs."""
    from hwnas.deploy.bundle import Bundle

    checks = Bundle.load(bundle).verify()
    if as_json:
        _print_json([asdict(check) for check in checks])
        return
    for check in checks:
        out.print(f"[green]✓[/] {check.name}  [dim]{check.detail}[/]", soft_wrap=True)


@app.command()
def run(
    bundle: BundlePath,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    as_json: Json = False,
) -> None:
    """Run a bundle on images."""
    from hwnas.deploy.bundle import Bundle

    answers = Bundle.load(bundle).run(images)
    if as_json:
        _print_json([{"image": str(i), **a} for i, a in zip(images, answers, strict=True)])
        return
    for image, answer in zip(images, answers, strict=True):
        if "label" in answer:
            text = f"{answer['label']}  {answer['probability']:.1%}"
        else:
            text = json.dumps(answer["values"])
        out.print(f"{image}  {text}", soft_wrap=True, markup=False)


@app.command()
def measure(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file.")],
    target: Annotated[str, typer.Option(help="E.g. cpu-onnxruntime-fp32-b1-t1.")],
    as_json: Json = False,
) -> None:
    """Time an ONNX file on a target of this machine."""
    from hwnas.deploy.device import Target
    from hwnas.deploy.timing import measure
    from hwnas.terminal import print_measurement

    measured = measure({str(model): model}, Target.parse(target))[str(model)]
    if as_json:
        _print_json(measured.to_json())
    else:
        print_measurement(out, str(model), measured)


@app.command()
def fingerprint(
    target: Annotated[str, typer.Option(help="E.g. cpu-onnxruntime-int8-b1-t1.")],
    as_json: Json = False,
) -> None:
    """What a target of this machine is like, from ten seconds of small models run on it."""
    from hwnas.deploy.device import Target
    from hwnas.predictors.fingerprint import fingerprint
    from hwnas.terminal import print_fingerprint

    found = fingerprint(Target.parse(target))
    if as_json:
        _print_json({**asdict(found), "machine": asdict(found.machine())})
    else:
        print_fingerprint(out, found)


@app.command()
def devices(as_json: Json = False) -> None:
    """Targets that can be used on this machine."""
    from hwnas.deploy.catalogue import devices

    found = devices()
    if as_json:
        _print_json([asdict(device) for device in found])
        return
    for device in found:
        state = "usable" if device.usable else f"not usable: {device.reason}"
        out.print(f"[bold]{device.target}[/]  {state}", soft_wrap=True)
        for key, value in device.details.items():
            out.print(f"    {key}: {value}", soft_wrap=True, markup=False)


@app.command()
def spaces(as_json: Json = False) -> None:
    """Search spaces by name, with their presets."""
    from hwnas.search_spaces.catalogue import spaces
    from hwnas.terminal import table_of

    found = spaces()
    if as_json:
        _print_json([asdict(space) for space in found])
        return
    rows = [
        [
            f"{s.name} ({s.preset})",
            "x".join(map(str, s.image_shape)),
            str(s.choices),
            f"{s.size:.2g}",
        ]
        for s in found
    ]
    out.print(table_of(["name (preset)", "images", "choices", "networks"], rows, "Search spaces"))
    out.print('one\'s own: [space] name = "package.module:object"', markup=False, style="dim")


@bench.command("engine")
def bench_engine(
    trials: Annotated[int, typer.Option(min=1, help="How many trials.")] = 2000,
    choices: Annotated[int, typer.Option(min=1, help="Choices of the space.")] = 12,
    sampler: Annotated[str, typer.Option(help="Name of the sampler.")] = "nsga2",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
) -> None:
    """Time the search engine itself, with an evaluation that takes no time."""
    from hwnas.atomic import write_json
    from hwnas.search.benchmark import EngineRow, bench_engine

    def show(row: EngineRow) -> None:
        out.print(
            f"{row.trials:6d} trials  {row.ms_per_trial:6.2f} ms  "
            f"{row.cpu_ms_per_trial:6.2f} CPU ms a trial  {row.pss_mb:6.0f} MB"
        )

    rows = bench_engine(trials, choices, sampler, on_row=show)
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])


@bench.command("predictor")
def bench_predictor(
    table: Annotated[Path, typer.Option(help="An .npz file of costs of networks on devices.")],
    train: Annotated[str, typer.Option(help="Known devices, separated by commas.")],
    test: Annotated[str, typer.Option(help="Devices to predict for, separated by commas.")],
    metric: Annotated[
        Literal["latency", "energy"], typer.Option(help="What is predicted.")
    ] = "latency",
    samples: Annotated[int, typer.Option(help="Measurements of each new device.")] = 10,
    pool: Annotated[int, typer.Option(help="The first so many rows may be measured.")] = 900,
    protocol: Annotated[
        Literal["trimmed", "full"], typer.Option(help="Rows: as HELP scores them, or all.")
    ] = "trimmed",
    method: Annotated[str, typer.Option(help="Name of the method.")] = "default",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 5,
    space: Annotated[
        str | None, typer.Option(help="Space of the networks; recognised if not given.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
) -> None:
    """Score a method of predicting costs on devices that it has not seen."""
    from hwnas.atomic import write_json
    from hwnas.predictors.benchmark import bench_predictor
    from hwnas.predictors.cost_table import read_cost_table
    from hwnas.terminal import print_predictor_rows

    rows = bench_predictor(
        read_cost_table(table, metric, space),
        _listed(train),
        _listed(test),
        method,
        samples,
        pool,
        protocol,
        seeds,
    )
    print_predictor_rows(out, rows)
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _show(summary: Any, as_json: bool) -> None:
    if as_json:
        _print_json(summary.to_json())
        return
    from hwnas.terminal import print_summary

    print_summary(out, summary)


class _resumable:
    """Says how to go on where a run is interrupted, by Ctrl-C or by SIGTERM."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, lambda *_: _interrupt())

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if kind is KeyboardInterrupt and (self._run / "run.json").exists():
            _fail(f"interrupted; `hwnas resume {self._run}` goes on from here", 130)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str, status: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(status)


def main() -> None:
    """Entry point: errors that hwnas raises on purpose become one line and exit status 2."""
    try:
        status = app(prog_name="hwnas", standalone_mode=False)
    except HwnasError as error:
        _fail(f"error: {' '.join(str(error).split())}", 2)
    except _UsageError as error:
        _fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:  # of `hwnas ... | head`; Python would complain again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    if status == 130:  # what Typer makes of Ctrl-C
        _fail("interrupted", 130)
    raise SystemExit(status if isinstance(status, int) else 0)


def _usage(error: Any) -> str:
    if error.ctx is None:
        return f"error: {error.format_message()}"
    if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed already
        return f"error: a command is missing; try `{error.ctx.command_path} --help`"
    message = " ".join(error.format_message().split()).rstrip(".")
    end = "" if message.endswith("?") else ";"
    return f"error: {message}{end} see `{error.ctx.command_path} --help`"


if __name__ == "__main__":
    main()
