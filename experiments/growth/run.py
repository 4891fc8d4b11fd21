"""How many CPU seconds does a search by growth need to a target accuracy?

Four searches: the bandit and the learned controller, each with networks that start from their
parents' weights and with networks that are all trained from scratch. The last side is the network
with which the bandit reached the target, trained from scratch alone. CPU seconds are those of the
whole process, so samplers and the planning of growth count, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.errors import ConfigError
from hwnas.search import (
    Evaluation,
    Evaluator,
    Fidelity,
    GrowEvaluator,
    InProcess,
    SearchOptions,
    TrainEvaluator,
    run_search,
)
from hwnas.search_spaces import Candidate
from hwnas.stages.run_inputs import RunInputs

GROWN, SCRATCH, ALONE = "grown", "scratch", "alone"
SAMPLERS = {"bandit": "growth", "controller": "eas"}
SIDES = tuple(f"{sampler} {weights}" for weights in (GROWN, SCRATCH) for sampler in SAMPLERS)


@dataclass(frozen=True)
class Evaluated:
    """Network with its accuracy on validation images, and the CPU seconds until then."""

    candidate: Candidate
    accuracy: float
    cpu_s: float


@dataclass(frozen=True)
class Timed:
    """Evaluator that notes the CPU seconds of the process at the end of each evaluation.

    Attributes:
        evaluator: Evaluator that trains.
        begun_s: CPU seconds of the process before the search.
        log: Networks that were evaluated, in order.
    """

    evaluator: Evaluator
    begun_s: float = field(default_factory=time.process_time)
    log: list[Evaluated] = field(default_factory=list)

    @property
    def key(self) -> str:
        """See `Evaluator.key`."""
        return self.evaluator.key

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """See `Evaluator.evaluate`."""
        found = self.evaluator.evaluate(candidate, fidelity)
        used = time.process_time() - self.begun_s
        self.log.append(Evaluated(candidate, found.values["accuracy"], used))
        return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=float, default=0.88, help="accuracy to reach, 0 to 1")


def work(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.target < 1:
        raise ConfigError(f"--target is {arguments.target}; expected an accuracy in (0, 1)")
    setting = Setting(arguments, {"target": arguments.target})
    for seed in setting.seeds:
        left = [
            side
            for side in (*SIDES, ALONE)
            if setting.answers.find("best_accuracy", side, seed) is None
        ]
        inputs = setting.run_inputs(seed) if left else None
        for side in left:
            assert inputs is not None
            if side == ALONE:
                log = trained_alone(setting, inputs, seed, arguments.target)
            else:
                log = searched(inputs, side, seed)
            record(setting, side, seed, log, arguments.target)
    setting.show()


def trained_alone(setting: Setting, inputs: RunInputs, seed: int, target: float) -> list[Evaluated]:
    """Train the network with which the first side reached the target, or else its best one."""
    rows = [(row.value or 0.0, row) for row in setting.observed(SIDES[0], seed)]
    _, best = max(rows, key=lambda pair: pair[0])
    chosen = next((row for value, row in rows if value >= target), best)
    timed = Timed(_evaluator(inputs, SCRATCH, setting.work))
    network = inputs.space.architecture(chosen.details["choices"])
    timed.evaluate(Candidate.of(network), Fidelity())
    return timed.log


def searched(inputs: RunInputs, side: str, seed: int) -> list[Evaluated]:
    """Run the search of a side, and return the networks that it evaluated."""
    sampler, weights = side.split()
    config = inputs.recipe.search
    with TemporaryDirectory() as folder:
        timed = Timed(_evaluator(inputs, weights, Path(folder)))
        run_search(
            inputs.space,
            inputs.recipe.objective,
            InProcess(timed),
            SearchOptions(config.trials, SAMPLERS[sampler], seed=seed, batch=config.batch),
        )
    return timed.log


def _evaluator(inputs: RunInputs, weights: str, folder: Path) -> Evaluator:
    given = inputs.space, inputs.task, inputs.data, inputs.recipe.train
    if weights == GROWN:
        return GrowEvaluator(*given, folder, inputs.recipe.seed)
    return TrainEvaluator(*given, inputs.recipe.seed)


def record(setting: Setting, side: str, seed: int, log: Sequence[Evaluated], target: float) -> None:
    """Record the evaluations of a side, and when it reached the target."""
    reached = next((each.cpu_s for each in log if each.accuracy >= target), None)
    best = max(each.accuracy for each in log)
    print(f"seed {seed}: {side}: best {best:.4f}, target after {reached} CPU s", flush=True)
    setting.observations.put(
        [
            Row(
                *("validation_accuracy", f"{side} {number}", seed, each.accuracy, "fraction", 1),
                details={"cpu_s": each.cpu_s, "choices": each.candidate.network.as_dict()},
            )
            for number, each in enumerate(log)
        ]
    )
    setting.answer(
        [
            Row("cpu_s_to_target", side, seed, reached, "s", len(log)),
            Row("cpu_s", side, seed, log[-1].cpu_s, "s", len(log)),
            Row("best_accuracy", side, seed, best, "fraction", len(log)),
        ]
    )


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
