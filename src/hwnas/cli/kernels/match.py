"""Command that lists the operators that compute a network."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import Json, out, print_json
from hwnas.cli.kernels.group import kernels
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.matching.kernel_plan import KernelPlan, PlannedCall


@kernels.command()
def match(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file")],
    target: Annotated[
        str, typer.Option(help="Target of the runtime triton, e.g. cuda-triton-fp16-b1-t1")
    ] = "cuda-triton-fp16-b1-t1",
    as_json: Json = False,
) -> None:
    """List the operators that compute an ONNX file, their sizes, and the nodes left to PyTorch.

    Nothing is run. With a GPU, kernels are listed where they were measured to be faster, and
    PyTorch elsewhere. Without one, no times are known, and kernels are listed everywhere.
    """
    from hwnas.deploy.runtimes.triton import kernel_plan
    from hwnas.deploy.targets.target import Target

    wanted = Target.parse(target)
    if wanted.device.runtime != "triton":
        raise ConfigError(
            f"{target} does not use these kernels; give a target of the runtime triton, such as "
            "cuda-triton-fp16-b1-t1"
        )
    plan = kernel_plan(model, wanted)
    if as_json:
        print_json(asdict(plan))
    else:
        _show(plan)


def _show(plan: KernelPlan) -> None:
    """Print a row for each operator at some sizes, then nodes in PyTorch and alternatives."""
    from hwnas.cli.terminal import table_of
    from hwnas.deploy.matching.kernel_plan import NO_GPU

    rows = Counter(map(_row, plan.calls))
    heads = ["calls", "operator", "type", "sizes", "computed by", "nodes"]
    out.print(table_of(heads, [[str(count), *row] for row, count in rows.items()]))
    for left in plan.in_torch:
        line = f"{left['count']} {left['kind']} in PyTorch: {left['reason']}"
        out.print(line, soft_wrap=True, markup=False)
    for reason, count in Counter(call.alternative for call in plan.calls).items():
        if reason:
            out.print(f"{count} with an alternative: {reason}", soft_wrap=True, markup=False)
    if plan.gpu == NO_GPU:
        out.print(
            "Nothing was measured, as there is no GPU. On one, PyTorch computes operators whose "
            "kernels were not measured to be faster.",
            soft_wrap=True,
        )


def _row(call: PlannedCall) -> tuple[str, ...]:
    from hwnas.kernels.sizes import sizes_text

    by = "kernel" if call.kernel else "PyTorch"
    sizes = sizes_text(call.sizes)
    return call.operator, call.dtype, sizes, by, " ".join(call.nodes)
