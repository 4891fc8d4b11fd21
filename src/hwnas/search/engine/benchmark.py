"""Benchmark of the search engine's own overhead, without the cost of evaluations."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
from torch import nn

from hwnas.search.engine.loop import run_search
from hwnas.search.engine.options import SearchCallbacks, SearchOptions, StudyStorage
from hwnas.search.engine.result import Scored
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search.objectives.objective import Objective
from hwnas.search_spaces import (
    Architecture,
    Candidate,
    Choice,
    NetworkOperator,
    OperatorSignature,
    PartTable,
    SearchSpace,
    TensorSpec,
    Workload,
)

__all__ = ["EngineRow", "bench_engine", "pss_mb"]

WINDOW = 100
_OPTIONS = (0, 1, 2, 3)
_WEIGHTS = 64  # weights of a layer with its smallest option
_PIXELS = 16


class _ManyChoices(SearchSpace):
    """Search space whose networks do nothing, so that only the engine's own work is timed."""

    name = "many-choices"

    def __init__(self, choices: int) -> None:
        self._choices = tuple(Choice(f"layer{i}.option", _OPTIONS) for i in range(choices))

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self._choices

    def build(self, architecture: Architecture) -> nn.Module:
        return nn.Flatten()

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 1, 1, 1

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        weights = [_WEIGHTS * (1 + int(option)) for _, option in architecture.values]
        between = [TensorSpec(0, (batch, _PIXELS), "input")]
        between += [TensorSpec(i + 1, (batch, _PIXELS), "activation") for i in range(len(weights))]
        first = len(between)
        read = [TensorSpec(first + i, (size,), "weight") for i, size in enumerate(weights)]
        operators = tuple(
            NetworkOperator(
                "pointwise", "convolution", (i, first + i), (i + 1,), batch * _PIXELS * size
            )
            for i, size in enumerate(weights)
        )
        return Workload(operators, (*between, *read), (len(weights),), sum(weights))

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        return self._part_table, codes

    @cached_property
    def _part_table(self) -> PartTable:
        sizes = [_WEIGHTS * (1 + option) for option in _OPTIONS]
        steps = [
            OperatorSignature("pointwise", _PIXELS * size, 4 * _PIXELS, 4 * _PIXELS, 4 * size)
            for size in sizes
        ]
        return PartTable.of([[{step: 1} for step in steps]] * len(self._choices))


@dataclass(frozen=True)
class _Instant:
    """Evaluator without training; large options score well in odd layers and badly in even ones."""

    key: str = "instant"

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        values = [int(value) for _, value in candidate.network.values]
        merit = sum(values[1::2]) - sum(values[::2])
        return Evaluation({"accuracy": float(merit)}, {"accuracy": 0.0}, 1, "validation")


@dataclass(frozen=True)
class EngineRow:
    """Overhead of the engine over the last 100 trials.

    Attributes:
        trials: Trials finished so far.
        sampler: Name of the sampler.
        choices: Number of choices of the space.
        ms_per_trial: Wall time per trial, in milliseconds.
        cpu_ms_per_trial: CPU time per trial, in milliseconds.
        pss_mb: Memory of this process and its children (proportional set size), in MB.
    """

    trials: int
    sampler: str
    choices: int
    ms_per_trial: float
    cpu_ms_per_trial: float
    pss_mb: float


def bench_engine(
    trials: int,
    choices: int,
    sampler: str = "guided",
    seed: int = 0,
    on_row: Callable[[EngineRow], None] = lambda row: None,
) -> list[EngineRow]:
    """Run a search whose evaluations take no time, with a study on disk; time every 100 trials.

    Args:
        trials: Number of trials, at least 1.
        choices: Number of choices of the space, with four options each.
        sampler: Name of the sampler; see `hwnas.search.SAMPLERS`.
        seed: Seed of the sampler.
        on_row: Callback for each row, as soon as it is measured.
    """
    rows: list[EngineRow] = []
    wall, cpu, counted = time.perf_counter(), time.process_time(), 0

    def on_trial(trial: Scored, complete: int) -> None:
        nonlocal wall, cpu, counted
        if complete % WINDOW and complete != trials:
            return
        n = complete - counted
        wall_ms = (time.perf_counter() - wall) * 1e3 / n
        cpu_ms = (time.process_time() - cpu) * 1e3 / n
        rows.append(EngineRow(complete, sampler, choices, wall_ms, cpu_ms, pss_mb()))
        on_row(rows[-1])
        wall, cpu, counted = time.perf_counter(), time.process_time(), complete

    with tempfile.TemporaryDirectory() as folder:
        run_search(
            _ManyChoices(choices),
            [Objective("accuracy", "maximize"), Objective("params", "minimize")],
            _Instant(),
            SearchOptions(trials, sampler, seed=seed),
            storage=StudyStorage(Path(folder, "study.db")),
            callbacks=SearchCallbacks(on_trial),
        )
    return rows


def pss_mb() -> float:
    """Return the memory of this process and its children as proportional set size, in MB.

    Shared pages are divided among the processes that use them.
    """
    process = psutil.Process(os.getpid())
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue
    return total / 1e6
