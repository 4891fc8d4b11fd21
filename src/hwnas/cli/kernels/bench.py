"""Command that times operators on several backends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import out
from hwnas.cli.kernels.group import kernels

if TYPE_CHECKING:
    from hwnas.kernels.suite.bench import Timing

_BACKENDS = ("triton", "reference", "compile", "onnxruntime")
_COLUMNS = "{:<24} {:<8} {:<28} {:<12} {:>10} {:>10} {:>10} {:>6}".format


@kernels.command()
def bench(
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPERATOR]...", help="Operators; all if none is given"),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="triton, reference, compile, onnxruntime, or your own; may be repeated; all four "
            "if none is given"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Data type, e.g. bfloat16; the first of each operator if not given"),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Images in a batch; may be repeated; 1 if not given"),
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Do not flush the second-level cache between runs")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            min=1.0, help="Time limit of all timings, in seconds; later ones are reported"
        ),
    ] = 600.0,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for all rows as JSON")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs")] = 0,
) -> None:
    """Time operators on several backends, interleaved, at sizes of searched networks.

    On a GPU every backend is captured in a CUDA graph, and the second-level cache is flushed before
    each run; with --warm it is never flushed. Without a GPU, backends that run on the CPU are timed
    there; Triton's interpreter is not timed. A backend whose results are far from correct is not
    timed.
    """
    import torch

    from hwnas.atomic import write_json
    from hwnas.deploy.onnx.suite_backend import backend_named
    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.codegen.chains import CHAINS
    from hwnas.kernels.operators.registry import OPERATORS
    from hwnas.kernels.suite.bench import run_bench
    from hwnas.kernels.suite.cases import Case
    from hwnas.kernels.suite.timer import GpuTimer, ProcessorTimer, Timer

    chosen = [backend_named(name) for name in dict.fromkeys(backend or _BACKENDS)]
    cases = Case.measured({**OPERATORS, **CHAINS}, operators or (), dtype, batch or (1,))
    if torch.cuda.is_available():
        gpu = Accelerator.here()
        device, name = torch.device("cuda"), gpu.name
        timer: Timer = GpuTimer() if warm else GpuTimer.cold(gpu)
    else:
        device, name, timer = torch.device("cpu"), "cpu", ProcessorTimer()
    timings: list[Timing] = []
    _print_row(["operator", "type", "shape", "backend", "median ms", "p20", "p80", "ratio"])
    for found in run_bench(cases, chosen, device, timer, seconds, seed):
        _show(found)
        timings += found
        if json_path is not None:  # after each case, so that a crash loses no results
            write_json(json_path, [{**each.to_json(), "device": name} for each in timings])
    _explain(timings, f"{name}: {timer.description}")


def _show(timings: Sequence[Timing]) -> None:
    """Print the rows of a case; only the first row names the case."""
    row = timings[0].case.to_json()
    about = [row["op"], row["dtype"], "x".join(map(str, dict(timings[0].case.sizes).values()))]
    for each in timings:
        numbers = (*(each.quantiles_ms or (None,) * 3), each.ratio)
        shown = ["-" if number is None else f"{number:#.3g}" for number in numbers]
        _print_row([*about, each.backend, *shown])
        about = [""] * 3


def _print_row(cells: Sequence[object]) -> None:
    """Print a row at once, which a complete table would not allow."""
    out.print(_COLUMNS(*cells).rstrip(), markup=False, soft_wrap=True)


def _explain(timings: Iterable[Timing], timing: str) -> None:
    """Print the meaning of the columns, and the reasons why some are empty."""
    reasons: dict[tuple[str, str], list[Timing]] = {}
    for each in timings:
        if each.reason:
            reasons.setdefault((each.backend, each.reason), []).append(each)
    out.print(
        f"{timing}; all backends of an operator interleaved. ratio: speed relative to the fastest "
        "of the others.",
        markup=False,
        soft_wrap=True,
    )
    for (backend, reason), rows in reasons.items():
        where = str(rows[0].case) if len(rows) == 1 else f"{len(rows)} rows"
        out.print(f"{backend}, {where}: {reason}", markup=False, soft_wrap=True)
