"""Ranking of configurations by what is known of them without a GPU. Nothing is measured."""

from __future__ import annotations

import heapq
from itertools import islice

import torch

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.compile_ahead import CompileRequest, compile_in_child
from hwnas.kernels.operator import Sizes
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.tuning.trial import TuningTrial, footprint

__all__ = ["ranked_statically"]

_MOST = 20_000  # most solutions that are considered


def ranked_statically(
    name: str, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator, count: int
) -> list[TuningTrial]:
    """Compile the configurations whose busiest multiprocessor reads least, and rank them.

    Args:
        name: Name of an operator in the registry, or ``"package.module:object"``.
        sizes: Sizes of the inputs.
        dtype: Type of the first input.
        gpu: GPU, which need not be in this machine.
        count: Number of configurations to compile, 0.2 to 2 seconds each.

    Returns:
        Trials in the order of fewer spills, then fewer bytes read, then higher occupancy; at the
        end those that cannot be compiled, with the reason.
    """
    operator = OPERATORS.find(name)
    inputs = operator.example(sizes, dtype, torch.Generator().manual_seed(0), torch.device("cpu"))
    solutions = islice(operator.problem(sizes, dtype, gpu).solutions(), _MOST)
    untried = (
        TuningTrial(config, "untried", footprint=footprint(operator, inputs, config, gpu))
        for config in solutions
    )
    chosen = heapq.nsmallest(count, untried, key=_busiest_bytes)
    requests = [CompileRequest(name, sizes, dtype, trial.config, gpu) for trial in chosen]
    compiled = [
        TuningTrial(trial.config, "failed", answer, trial.footprint)
        if isinstance(answer, str)
        else TuningTrial(trial.config, "untried", "", trial.footprint, answer)
        for trial, answer in zip(chosen, compile_in_child(requests), strict=True)
    ]

    def order(trial: TuningTrial) -> tuple[bool, int, float, float]:
        bad = trial.verdict == "failed"
        return bad, trial.spilled_bytes, _busiest_bytes(trial), -trial.occupancy(gpu)

    return sorted(compiled, key=order)


def _busiest_bytes(trial: TuningTrial) -> float:
    assert trial.footprint
    return trial.footprint.busiest_bytes
