"""Command that verifies a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import out
from hwnas.cli.kernels.group import kernels

if TYPE_CHECKING:
    from hwnas.kernels.verifier import KernelVerdict

_MARKS = {"passed": "[green]✓[/]", "failed": "[red]✗[/]", "not applicable": "-"}


@kernels.command()
def verify(
    kernel: Annotated[
        str, typer.Argument(metavar="FILE.py|OPERATOR", help="A file with `run`, or an operator")
    ],
    reference: Annotated[
        Path | None,
        typer.Option(help="Trusted file that defines the correct results instead of FILE.py"),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for the verdict as JSON")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the random inputs, to reproduce a verdict")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Time limit of one call, in seconds")
    ] = 60.0,
    memory_mb: Annotated[
        int, typer.Option(min=1, help="Memory limit of its process, in MB")
    ] = 4096,
) -> None:
    """Check a kernel that may be wrong or made to look right; exit with status 1 if it is refused.

    FILE.py defines a function `run` that takes its inputs by name and returns the output or a tuple
    of outputs. There are three ways to define the correct results. First, FILE.py names one of
    hwnas's operators, such as `operator = "pointwise"`; `run` is then called with the inputs of
    that operator. Second, FILE.py defines four things: `reference`, which takes the same inputs;
    `inputs(sizes, dtype, generator)`, which makes the inputs and raises an error for unsupported
    sizes; `sizes = ({"rows": 7, "columns": 33},)`; and `dtypes = ("float16", "float32")`. The last
    two have to be literals. Third, the file of --reference defines these four.

    FILE.py runs in processes of its own, on the GPU if there is one, otherwise in Triton's
    interpreter.
    """
    from hwnas.atomic import write_json
    from hwnas.errors import ConfigError
    from hwnas.kernels.verifier import JobLimits, verify

    verdict = verify(kernel, reference, seed=seed, limits=JobLimits(seconds, memory_mb * 2**20))
    if verdict.failed == ("loads",):
        raise ConfigError(f"{kernel} cannot be imported: {verdict.checks[0].detail}")
    _show(verdict)
    if json_path is not None:
        write_json(json_path, verdict.to_json())
    if not verdict.ok:
        raise typer.Exit(1)


def _show(verdict: KernelVerdict) -> None:
    from rich.markup import escape

    for check in verdict.checks:
        detail = escape(check.detail)
        out.print(f"{_MARKS[check.status]} {check.name}  [dim]{detail}[/]", soft_wrap=True)
    where = "in Triton's interpreter" if verdict.interpreted else "without the interpreter"
    end = f"refused by {', '.join(verdict.failed)}" if verdict.failed else "accepted"
    out.print(
        f"{verdict.kernel}: {end}; run on {verdict.device} {where}, seed {verdict.seed}",
        soft_wrap=True,
        markup=False,
    )
