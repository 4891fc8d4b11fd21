"""Tuner of operators on the GPU of this machine, which saves each new best result at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import triton

from hwnas.atomic import locked
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes, dtype_name
from hwnas.kernels.suite.gpu_bench import GpuBench
from hwnas.kernels.suite.timer import GpuTimer, Times
from hwnas.kernels.tuning.choice import forget_choices, known_results
from hwnas.kernels.tuning.cost_model import CostModel
from hwnas.kernels.tuning.proposers import Proposer, RuleProposer
from hwnas.kernels.tuning.trial import TuningTask, TuningTrial, key_of
from hwnas.kernels.tuning.tuned import REFERENCE, TunedEntry, TunedTable, own_path
from hwnas.kernels.tuning.tuner import TuningResult, tune

__all__ = ["GpuTuning", "Rival", "keep", "task_of", "versions_here"]

Rival = Callable[[Inputs], Callable[[], object]]  # returns a call that computes the same on inputs


@dataclass(frozen=True)
class GpuTuning:
    """Settings for the tuning of operators on the current GPU.

    Attributes:
        gpu: Current GPU.
        timer: Timer of kernels and rivals.
        seconds: Time limit for each operator at some sizes; rivals besides the reference are timed
            after it.
        proposer: Function of a task and a seed that makes a proposer.
        rivals: Other implementations, by name, besides the operator's reference.
        seed: Seed of all random choices.
        bench: Function that makes the bench on which an operator is tried, called as `GpuBench`
            is.
    """

    gpu: Accelerator
    timer: GpuTimer
    seconds: float = 30.0
    proposer: Callable[[TuningTask, int], Proposer] = RuleProposer
    rivals: Mapping[str, Rival] = field(default_factory=dict)
    seed: int = 0
    bench: Callable[..., GpuBench] = GpuBench

    def tune(
        self, operator: Operator, sizes: Sizes, dtype: torch.dtype, model: CostModel | None = None
    ) -> tuple[TuningResult, TunedEntry | None]:
        """Tune one operator, and save the best result so far among the user's own results.

        Args:
            operator: Operator to tune.
            sizes: Sizes of the inputs.
            dtype: Type of the first input.
            model: Cost model that was trained at other sizes of the operator; it is trained further
                here.

        Returns:
            All trials and the saved entry, which is None if nothing ran.

        Raises:
            ArtifactError: The file of the user's results is damaged, or of another GPU.
            StorageError: The file cannot be written.
        """
        end = time.monotonic() + self.seconds
        TunedTable.read(own_path(self.gpu), self.gpu)  # raises before there is anything to lose
        bench = self.bench(
            operator, sizes, dtype, self.gpu, self.timer, torch.device("cuda"), self.seed
        )
        rivals, absent = _raced(
            bench, {REFERENCE: lambda inputs: partial(operator.reference, **inputs)}
        )
        entry = partial(self._entry, operator, sizes, dtype)
        best_us = math.inf

        def on_trial(trial: TuningTrial) -> None:
            nonlocal best_us
            if trial.verdict == "timed" and trial.p50_us < best_us:
                best_us = trial.p50_us
                keep(self.gpu, entry(rivals, trial))

        outcome = tune(
            task_of(operator, sizes, dtype, self.gpu),
            bench,
            self.proposer,
            seconds=end - time.monotonic(),
            clock=time.monotonic,
            seed=self.seed,
            model=model,
            on_trial=on_trial,
        )
        best = outcome.best
        if best is None:
            return outcome, None
        others, too = _raced(bench, self.rivals)
        outcome = replace(outcome, notes=(*outcome.notes, *absent, *too))
        kept = entry(rivals | others, best)
        keep(self.gpu, kept)
        return outcome, kept

    def _entry(
        self,
        operator: Operator,
        sizes: Sizes,
        dtype: torch.dtype,
        rivals: Mapping[str, Times],
        trial: TuningTrial,
    ) -> TunedEntry:
        assert trial.times
        return TunedEntry(
            operator=operator.name,
            dtype=dtype_name(dtype),
            sizes=sizes,
            config=trial.config,
            times=trial.times,
            timing=self.timer.description,
            rivals=rivals,
            versions=versions_here(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def task_of(operator: Operator, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> TuningTask:
    """Return the task, which starts with good configurations of near sizes and the default."""
    problem = operator.problem(sizes, dtype, gpu)
    entries = known_results(gpu).nearest(operator.name, dtype_name(dtype), sizes)
    # The best known one comes first, so a run killed at any time saves nothing worse in its place.
    near = [entry.config for entry in entries if not problem.broken(entry.config)][:3]
    starts: dict[object, Config] = {}
    for config in (*near, operator.default_config(sizes, dtype)):
        starts.setdefault(key_of(config), config)
    return TuningTask(operator.name, sizes, dtype, gpu, problem, tuple(starts.values()))


def versions_here() -> dict[str, str]:
    """Return the versions of Triton, PyTorch and the driver, which decide how fast a kernel is."""
    module = Path("/proc/driver/nvidia/version")  # "NVRM version: NVIDIA ... Module  570.1  date"
    words = module.read_text().split("Module", 1)[-1].split() if module.exists() else []
    driver = next((word for word in words if word[0].isdigit()), "unknown")
    return {"triton": triton.__version__, "torch": torch.__version__, "driver": driver}


def _raced(
    bench: GpuBench, rivals: Mapping[str, Rival]
) -> tuple[dict[str, Times], tuple[str, ...]]:
    """Return the times of rivals, and a note for each rival that cannot run here."""
    times, absent = {}, []
    for name, rival in rivals.items():
        try:
            times[name] = bench.rival(rival(bench.inputs))
        except Exception as error:  # as for integer products, which PyTorch lacks on GPUs
            absent.append(f"rival {name} cannot run: {' '.join(str(error).split())}")
    return times, tuple(absent)


def keep(gpu: Accelerator, entry: TunedEntry) -> None:
    """Save a result among the user's own; other processes may do so at the same time.

    Raises:
        ArtifactError: The file of the user's results is damaged, or of another GPU.
        StorageError: The file cannot be written.
    """
    path = own_path(gpu)
    with locked(path.parent):
        TunedTable.read(path, gpu).with_entry(entry).write(path)
    forget_choices()
