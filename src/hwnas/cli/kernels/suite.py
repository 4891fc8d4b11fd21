"""Command that checks the results of operators on a backend."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import out
from hwnas.cli.kernels.group import kernels

if TYPE_CHECKING:
    from hwnas.kernels.suite.correctness import CaseResult

_MARKS = {True: "✓", False: "✗", None: "-"}


@kernels.command()
def suite(
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPERATOR]...", help="Operators; all if none is given"),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Backend: triton, reference, compile, onnxruntime, or your own")
    ] = "triton",
    device: Annotated[
        str, typer.Option(help="GPU that kernels are compiled for; this machine need not have it")
    ] = "nvidia-h200",
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for all rows as JSON")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs")] = 0,
) -> None:
    """Compare operators of a backend with float64 results; exit with status 1 if one is wrong.

    Without a GPU, Triton's kernels are interpreted, in numpy. Their resource usage on --device is
    found by compiling them ahead of time, in processes of their own.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is defined
    from hwnas.atomic import write_json
    from hwnas.deploy.onnx.suite_backend import backend_named
    from hwnas.errors import DeviceError
    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.codegen.chains import CHAINS
    from hwnas.kernels.operators.registry import OPERATORS
    from hwnas.kernels.suite.cases import Case
    from hwnas.kernels.suite.correctness import compiled_suite, run_suite

    chosen = backend_named(backend)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if reason := chosen.unavailable(place):
        raise DeviceError(f"backend {backend} cannot be used: {reason}")
    cases, gpu = Case.all({**OPERATORS, **CHAINS}, operators or ()), Accelerator.named(device)
    with ThreadPoolExecutor(1) as aside:
        compiling = aside.submit(compiled_suite, cases if backend == "triton" else [], gpu)
        verdicts = list(run_suite(cases, chosen, place, seed))
        if found := compiling.result():
            verdicts = [v.with_resources(of) for v, of in zip(verdicts, found, strict=True)]
    _show(verdicts)
    if json_path is not None:
        write_json(json_path, [verdict.to_json() for verdict in verdicts])
    if any(verdict.failed for verdict in verdicts):
        raise typer.Exit(1)


def _show(verdicts: Iterable[CaseResult]) -> None:
    from hwnas.cli.terminal import table_of

    rows = []
    for each in verdicts:
        row = each.to_json()
        error = "-" if each.error is None else f"{each.error:.1e}"
        spills = "-" if each.spills is None else str(each.spills)
        shape, right = "x".join(map(str, row["shape"])), _MARKS[each.correct]
        rows.append([row["op"], row["dtype"], shape, right, error, spills])
    out.print(table_of(["operator", "type", "shape", "correct", "error", "spilled bytes"], rows))
    for each in verdicts:
        if each.reason:
            out.print(f"{each.case}: {each.reason}", markup=False, soft_wrap=True)
