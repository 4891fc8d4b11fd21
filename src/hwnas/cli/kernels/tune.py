"""Command that tunes operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwnas.cli.app import Json, out, print_json
from hwnas.cli.kernels.group import kernels
from hwnas.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch

    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.tuning.trial import TuningTrial
    from hwnas.kernels.tuning.tuner import TuningResult


@kernels.command()
def tune(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="Operator, e.g. pointwise")],
    sizes: Annotated[
        list[str],
        typer.Option(help="Sizes, e.g. images=1,pixels=196,inputs=96,outputs=576; may be repeated"),
    ],
    dtype: Annotated[str, typer.Option(help="Data type of its first input")] = "float16",
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Time limit for each --sizes, in seconds")
    ] = 30.0,
    device: Annotated[
        str | None, typer.Option(help="GPU, e.g. nvidia-h200; the one of this machine if not given")
    ] = None,
    proposer: Annotated[
        str, typer.Option(help='Proposer: rules, evolution, or "package.module:object"')
    ] = "rules",
    warm: Annotated[
        bool, typer.Option("--warm", help="Do not flush the second-level cache between runs")
    ] = False,
    static: Annotated[
        bool,
        typer.Option(
            "--static", help="Only compile, for a --device that this machine need not have"
        ),
    ] = False,
    count: Annotated[
        int, typer.Option(min=1, help="With --static: number of configurations to compile")
    ] = 12,
    seed: Annotated[int, typer.Option(help="Random seed")] = 0,
    as_json: Json = False,
) -> None:
    """Find the fastest configuration of an operator on this machine's GPU."""
    from hwnas.kernels.operator import Operator
    from hwnas.kernels.operators.registry import OPERATORS
    from hwnas.kernels.sizes import dtype_read, sizes_read

    _refuse_unused(context, static)
    found = OPERATORS.find(operator)
    if not isinstance(found, Operator):
        raise ConfigError(f"operator {operator!r} is {found!r}; expected an Operator")
    rows = [sizes_read(found, row) for row in sizes]
    kind = dtype_read(found, dtype)
    if static:
        _rank(operator, rows, kind, device or "nvidia-h200", count, as_json)
        return
    from hwnas.kernels.suite.timer import GpuTimer
    from hwnas.kernels.tuning.cost_model import CostModel
    from hwnas.kernels.tuning.gpu_tuning import GpuTuning
    from hwnas.kernels.tuning.proposers import proposer_named

    proposing = proposer_named(proposer)
    gpu = _gpu_here(device)
    timer = GpuTimer() if warm else GpuTimer.cold(gpu)
    tuning, model = GpuTuning(gpu, timer, seconds, proposing, seed=seed), CostModel()
    results = []
    for row in rows:
        outcome, entry = tuning.tune(found, row, kind, model)
        results.append({"sizes": row, "best": entry and entry.to_json(), **_counted(outcome)})
        if not as_json:
            _show_tuned(results[-1], gpu)
    if as_json:
        print_json(results)


def _refuse_unused(context: typer.Context, static: bool) -> None:
    """Raise if an option was given that has no effect here."""
    unused = ("seconds", "proposer", "warm", "seed") if static else ("count",)
    for name in unused:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            instead = "nothing is timed with --static" if static else "it applies to --static only"
            raise ConfigError(f"--{name} has no effect here: {instead}. Leave it out")


def _gpu_here(device: str | None) -> Accelerator:
    """Return the GPU of this machine; raise if it is not the named one."""
    import torch

    from hwnas.kernels.accelerator import Accelerator

    instead = "; --static ranks configurations for another GPU, without timing them"
    if not torch.cuda.is_available():
        raise DeviceError(f"kernels are tuned on a GPU, and none was found{instead}")
    gpu = Accelerator.here()
    if device not in (None, gpu.key):
        raise DeviceError(f"the GPU of this machine is {gpu.key}, not {device}{instead}")
    return gpu


def _counted(outcome: TuningResult) -> dict[str, Any]:
    verdicts = Counter(trial.verdict for trial in (*outcome.trials, *outcome.refused))
    refused = [trial.reason for trial in outcome.refused[:3]]
    return {"verdicts": dict(verdicts), "refused": refused, "notes": list(outcome.notes)}


def _show_tuned(row: dict[str, Any], gpu: Accelerator) -> None:
    from hwnas.kernels.sizes import sizes_text
    from hwnas.kernels.tuning.tuned import own_path

    tried = ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items())
    out.print(f"{sizes_text(row['sizes'])}: {tried}", soft_wrap=True, markup=False)
    if best := row["best"]:
        out.print(f"  {sizes_text(best['config'])}", soft_wrap=True, markup=False)
        for name, times in {"triton": best["times"], **best["rivals"]}.items():
            out.print(f"  {name:<12} {times['p50_us']:8.2f} us ({best['timing']})", markup=False)
        out.print(f"  kept in {own_path(gpu)}", soft_wrap=True, markup=False)
    for note in row["refused"]:
        out.print(f"  refused: {note}", soft_wrap=True, markup=False)
    for note in row["notes"]:
        out.print(f"  {note}", soft_wrap=True, markup=False)


def _rank(
    operator: str,
    sizes: Sequence[Mapping[str, int]],
    dtype: torch.dtype,
    device: str,
    count: int,
    as_json: bool,
) -> None:
    """Compile configurations for a GPU, and show them ranked by resource usage."""
    from hwnas.cli.terminal import table_of
    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.sizes import sizes_text
    from hwnas.kernels.tuning.static_ranking import ranked_statically

    gpu = Accelerator.named(device)
    ranked = [(one, ranked_statically(operator, one, dtype, gpu, count)) for one in sizes]
    if as_json:
        print_json(
            [
                {"sizes": one, "device": gpu.key, "measured": False, **_static_row(trial, gpu)}
                for one, trials in ranked
                for trial in trials
            ]
        )
        return
    for one, trials in ranked:
        rows = [_static_row(trial, gpu) for trial in trials]
        out.print(f"{sizes_text(one)}, compiled for {gpu.name}", soft_wrap=True, markup=False)
        shown = [[sizes_text(row.pop("config")), *map(str, row.values())] for row in rows]
        out.print(table_of(["configuration", *rows[0]], shown))
    out.print(
        "Nothing was measured: the order is estimated from bytes, registers and shared memory."
    )


def _static_row(trial: TuningTrial, gpu: Accelerator) -> dict[str, Any]:
    assert trial.footprint
    found: dict[str, Any] = {"config": trial.config, "programs": trial.footprint.programs}
    found["busiest_bytes"] = round(trial.footprint.busiest_bytes)
    found["registers"] = max((part.registers for part in trial.resources), default=None)
    found["spilled_bytes"] = trial.spilled_bytes if trial.resources else None
    found["shared_bytes"] = max((part.shared_bytes for part in trial.resources), default=None)
    found["occupancy"] = round(trial.occupancy(gpu), 3)
    return found | {"reason": trial.reason}
