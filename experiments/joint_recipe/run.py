"""Does it pay to search training settings together with the networks that they train?

There are two searches with the same number of trials, each trial a training of the same time:
`joint` over networks and training settings, `fixed` over networks that are all trained by
`[train]`. Both fronts are chosen by validation accuracy, and scored by the test accuracy of the
same trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.search import (
    Evaluation,
    Executor,
    Fidelity,
    InProcess,
    RayActors,
    Scored,
    ScoreStore,
    SearchCallbacks,
    SearchOptions,
    StudyStorage,
    TrainEvaluator,
    run_search,
)
from hwnas.search.evaluation.scoring import score
from hwnas.search.objectives.front import Losses, hypervolume, non_dominated, reference_point
from hwnas.search_spaces import Candidate
from hwnas.stages.run_inputs import RunInputs

SIDES = ("joint", "fixed")
_TEST = "test_accuracy"


@dataclass(frozen=True)
class Tested:
    """Evaluator that also scores a training on the test images, which influence no choice.

    Attributes:
        alone: Evaluator that trains.
    """

    alone: TrainEvaluator

    @property
    def key(self) -> str:
        """See `Evaluator.key`."""
        return f"{self.alone.key}-tested"

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """See `Evaluator.evaluate`."""
        network, data = self.alone.trained(candidate), self.alone.data
        shape = self.alone.space.input_shape(candidate.network)
        found = score(network, self.alone.task, data.validation, shape, "validation")
        test = score(network, self.alone.task, data.test, shape, "test")
        return replace(found, values={**found.values, _TEST: test.values["accuracy"]})


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {})
    left = [s for s in setting.seeds if setting.answers.find("best_test", "fixed", s) is None]
    if left:
        with cores(setting.recipe(0)):
            for seed in left:
                found = {side: searched(setting, side, seed) for side in SIDES}
                setting.observations.put(observed(found, seed))
                setting.answer(answers(found, seed))
    setting.show()


def searched(setting: Setting, side: str, seed: int) -> Sequence[Scored]:
    """Run the search of one side and return its trials."""
    run_inputs, folder = setting.run_inputs(seed), setting.work / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    config = run_inputs.recipe.search

    def on_trial(trial: Scored, complete: int) -> None:
        print(f"seed {seed}: {side} {complete}/{config.trials}, {trial.values['accuracy']:.4f}",
              flush=True)  # fmt: skip

    executor = _executor(run_inputs, side == "joint")
    try:
        result = run_search(
            run_inputs.searched if side == "joint" else run_inputs.space,
            run_inputs.recipe.objective,
            executor,
            SearchOptions(config.trials, config.sampler, seed=seed, batch=config.batch),
            storage=StudyStorage(
                folder / "study.db", side, scores=ScoreStore(folder / "scores.jsonl")
            ),
            callbacks=SearchCallbacks(on_trial),
        )
    finally:
        executor.close()
    return result.trials


def _executor(run_inputs: RunInputs, joint: bool) -> Executor:
    recipe = run_inputs.recipe
    alone = TrainEvaluator(
        run_inputs.space,
        run_inputs.task,
        run_inputs.data,
        recipe.train,
        recipe.seed,
        run_inputs.recipe_space if joint else None,
    )
    workers = recipe.search.workers
    return RayActors(Tested(alone), workers) if workers else InProcess(Tested(alone))


def observed(found: Mapping[str, Sequence[Scored]], seed: int) -> list[Row]:
    """Return a row for every training."""
    return [
        Row(
            "test_accuracy",
            f"{side} {trial.candidate.id}",
            seed,
            trial.values[_TEST],
            "fraction",
            1,
            details={
                "validation_accuracy": trial.values["accuracy"],
                "macs": trial.values["macs"],
                "trial": trial.number,
                "choices": trial.candidate.as_dict(),
            },
        )
        for side, trials in found.items()
        for trial in trials
    ]


def answers(found: Mapping[str, Sequence[Scored]], seed: int) -> list[Row]:
    """Return the results of both sides, and the hypervolume ratio of joint to fixed."""
    tables = {side: _losses(trials, _TEST) for side, trials in found.items()}
    reference = reference_point(np.vstack(list(tables.values())))
    volumes, rows = {}, []
    for side, trials in found.items():
        front = non_dominated(_losses(trials, "accuracy"))
        volumes[side] = hypervolume(tables[side][front], reference)
        best = max(trials, key=lambda trial: trial.values["accuracy"])
        n = len(trials)
        rows += [
            Row("hypervolume", side, seed, volumes[side], "log macs x error", n),
            Row("best_test", side, seed, best.values[_TEST], "fraction", n),
        ]
    ratio = volumes["joint"] / max(volumes["fixed"], 1e-12)
    return [*rows, Row("hypervolume_ratio", "joint / fixed", seed, ratio, "ratio", n)]


def _losses(trials: Sequence[Scored], metric: str) -> Losses:
    """Return errors and logarithms of multiply-accumulates, of shape (N, 2)."""
    return np.array([[1 - t.values[metric], np.log(t.values["macs"])] for t in trials])


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, recipe=here / "recipe.toml")
