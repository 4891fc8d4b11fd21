"""Tunes operators on the card of this machine, and keeps what is best as soon as it is known."""

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
from hwnas.kernels.card_bench import CardBench
from hwnas.kernels.choice import forget_choices, known_results
from hwnas.kernels.cost_model import CostModel
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes, dtype_name
from hwnas.kernels.proposers import Proposer, Rules
from hwnas.kernels.timer import CardTimer, Times
from hwnas.kernels.trial import Task, Trial, key_of
from hwnas.kernels.tuned import REFERENCE, Entry, TunedTable, own_path
from hwnas.kernels.tuner import Outcome, tune

__all__ = ["CardTuning", "Rival", "keep", "task_of", "versions_here"]

Rival = Callable[[Inputs], Callable[[], object]]  # from inputs, what computes the same on them


@dataclass(frozen=True)
class CardTuning:
    """How operators are tuned on the current card.

    Attributes:
        card: The current card.
        timer: How kernels and rivals are timed.
        seconds: For each operator at some sizes; rivals besides the reference come after it.
        proposer: Makes a proposer of a task and a seed.
        rivals: Others that compute the same, by name, besides the operator's reference.
        seed: Of all that is random.
        bench: Makes that on which an operator is tried, called as `CardBench` is.
    """

    card: Accelerator
    timer: CardTimer
    seconds: float = 30.0
    proposer: Callable[[Task, int], Proposer] = Rules
    rivals: Mapping[str, Rival] = field(default_factory=dict)
    seed: int = 0
    bench: Callable[..., CardBench] = CardBench

    def tune(
        self, operator: Operator, sizes: Sizes, dtype: torch.dtype, model: CostModel | None = None
    ) -> tuple[Outcome, Entry | None]:
        """Tune one operator, and keep what is best so far in the user's own results.

        Args:
            operator: The operator.
            sizes: Of its inputs.
            dtype: Of its first input.
            model: Learned at other sizes of it; learns more here.

        Returns:
            All that was tried, and what was kept; None if nothing ran.

        Raises:
            ArtifactError: The file of the user's results is damaged, or of another card.
            StorageError: It cannot be written.
        """
        end = time.monotonic() + self.seconds
        TunedTable.read(own_path(self.card), self.card)  # before there is anything to lose
        bench = self.bench(
            operator, sizes, dtype, self.card, self.timer, torch.device("cuda"), self.seed
        )
        rivals, absent = _raced(
            bench, {REFERENCE: lambda inputs: partial(operator.reference, **inputs)}
        )
        entry = partial(self._entry, operator, sizes, dtype)
        best_us = math.inf

        def on_trial(trial: Trial) -> None:
            nonlocal best_us
            if trial.verdict == "timed" and trial.p50_us < best_us:
                best_us = trial.p50_us
                keep(self.card, entry(rivals, trial))

        outcome = tune(
            task_of(operator, sizes, dtype, self.card),
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
        keep(self.card, kept)
        return outcome, kept

    def _entry(
        self,
        operator: Operator,
        sizes: Sizes,
        dtype: torch.dtype,
        rivals: Mapping[str, Times],
        trial: Trial,
    ) -> Entry:
        assert trial.times
        return Entry(
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


def task_of(operator: Operator, sizes: Sizes, dtype: torch.dtype, card: Accelerator) -> Task:
    """What is tuned; it starts with what is good at these or near sizes, and the default."""
    problem = operator.problem(sizes, dtype, card)
    entries = known_results(card).nearest(operator.name, dtype_name(dtype), sizes)
    # What was the best here comes first, so that killed at any time nothing worse takes its place.
    near = [entry.config for entry in entries if not problem.broken(entry.config)][:3]
    starts: dict[object, Config] = {}
    for config in (*near, operator.default_config(sizes, dtype)):
        starts.setdefault(key_of(config), config)
    return Task(operator.name, sizes, dtype, card, problem, tuple(starts.values()))


def versions_here() -> dict[str, str]:
    """Of what decides how fast a kernel is."""
    module = Path("/proc/driver/nvidia/version")  # "NVRM version: NVIDIA ... Module  570.1  date"
    words = module.read_text().split("Module", 1)[-1].split() if module.exists() else []
    driver = next((word for word in words if word[0].isdigit()), "unknown")
    return {"triton": triton.__version__, "torch": torch.__version__, "driver": driver}


def _raced(
    bench: CardBench, rivals: Mapping[str, Rival]
) -> tuple[dict[str, Times], tuple[str, ...]]:
    """Times of rivals, and a note for each that cannot run here."""
    times, absent = {}, []
    for name, rival in rivals.items():
        try:
            times[name] = bench.rival(rival(bench.inputs))
        except Exception as error:  # as for products of integers, which cards do not have
            absent.append(f"rival {name} is absent: {' '.join(str(error).split())}")
    return times, tuple(absent)


def keep(card: Accelerator, entry: Entry) -> None:
    """Put a result among the user's own; others may do so at the same time.

    Raises:
        ArtifactError: The file of the user's results is damaged, or of another card.
        StorageError: It cannot be written.
    """
    path = own_path(card)
    with locked(path.parent):
        TunedTable.read(path, card).with_entry(entry).write(path)
    forget_choices()
