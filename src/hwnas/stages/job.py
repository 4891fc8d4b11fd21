"""Run that is being worked on, and the stages that it consists of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hwnas.hashing import content_hash
from hwnas.identity import Identity
from hwnas.progress import ProgressCallback, Reporter, make_reporter
from hwnas.recipe import Recipe
from hwnas.recipe.keys import (
    RecipeStage,
    code_of,
    continues,
    later_than,
    parts_of,
    settings_of,
)
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.evaluate import Evaluator, KeepsWeights, weights_hash
from hwnas.search.evaluation.lineage import GrowEvaluator, Lineage
from hwnas.search.evaluation.own_identity import check_key
from hwnas.search.evaluation.registry import OwnCodeEvaluator
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search.training import load_weights
from hwnas.search.training.supernet import WEIGHTS
from hwnas.search_spaces import Candidate
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs, needs_weights

__all__ = ["START", "Job", "RunStage", "serves"]

START = "start weights"
"""Input of the training: hash of the weights that the supernet starts from."""


def serves(before: str, name: str, own_targets: Collection[str]) -> bool:
    """Return whether a stage is part of the goal that another stage belongs to.

    Args:
        before: Name of the stage in question.
        name: Name of a stage of the goal.
        own_targets: Targets of the run's own goal.
    """
    stage, place = parts_of(before)
    target = parts_of(name)[1]
    if stage == "calibrate":
        return place == target or (target is None and place in own_targets)
    return stage in ("train", "ranking") or place == target


@dataclass(frozen=True)
class RunStage:
    """Step of a run.

    Attributes:
        name: Name in the run's record.
        identity: Identity of all inputs of the stage.
        work: Function that does the work; its argument is the callback for the progress.
        made: Function that returns whether the results exist; users remove damaged ones.
        adopt: Function that records the identity in results of an older hwnas, which carry none. It
            returns the identity that they were made with, if it is known; otherwise None, and they
            count as made with the current inputs.
        continued: Names of inputs with which the stage continues from its existing results, beside
            the keys of the recipe of this kind.
    """

    name: str
    identity: Identity
    work: Callable[[ProgressCallback], None]
    made: Callable[[], bool]
    adopt: Callable[[], Identity | None] = lambda: None
    continued: Sequence[str] = ()


@dataclass(frozen=True)
class Job:
    """Run that is being worked on.

    Attributes:
        run_inputs: Data, task and space.
        folder: Folder of the results.
        reporter: Reporter of progress and notes to the user.
    """

    run_inputs: RunInputs
    folder: RunFolder
    reporter: Reporter

    @classmethod
    def of(cls, folder: RunFolder) -> Job:
        """Return the job of an opened run."""
        run_inputs = RunInputs.prepare(folder.recipe, folder.recipe_folder, folder.objects)
        return cls(run_inputs, folder, make_reporter())

    @property
    def recipe(self) -> Recipe:
        """Recipe of the run."""
        return self.run_inputs.recipe

    @property
    def fidelity(self) -> Fidelity:
        """Fidelity of the evaluations of the search."""
        return Fidelity(self.recipe.search.validation_images)

    @property
    def needs_supernet(self) -> bool:
        """True if the evaluator takes the weights of a trained supernet."""
        return needs_weights(self.run_inputs.evaluator)

    @property
    def trains_supernet(self) -> bool:
        """True if a supernet is trained, for the evaluator or for a strategy."""
        return self.needs_supernet or self.run_inputs.strategy is not None

    @property
    def trained_weights(self) -> dict[str, Tensor]:
        """Weights at the end of the supernet's training, before a strategy trains them further."""
        return load_weights(self.folder.path / "supernet" / WEIGHTS)

    def supernet_weights(self, goal: SearchGoal) -> dict[str, Tensor] | None:
        """Read the weights that networks are scored with for a goal; None if there are none."""
        if not self.needs_supernet:
            return None
        if self.run_inputs.strategy is None:
            return self.trained_weights
        return load_weights(self.strategy_folder(goal) / WEIGHTS)

    def strategy_folder(self, goal: SearchGoal) -> Path:
        """Return the folder of what the strategy learned for a goal."""
        return self.folder.output(goal.target) / "strategy"

    @property
    def _evaluator_folder(self) -> Path:
        return self.folder.path.absolute() / "evaluator"

    @property
    def lineage(self) -> Lineage | None:
        """Networks that the search trained, if its evaluator keeps them."""
        if self.run_inputs.evaluator is not GrowEvaluator:
            return None
        evaluator = self._plain_evaluator(None)
        assert isinstance(evaluator, GrowEvaluator)
        return evaluator.lineage

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return the weights that the search trained for a candidate; None if they are not kept."""
        evaluator = self._plain_evaluator(None)
        return evaluator.kept_weights(candidate) if isinstance(evaluator, KeepsWeights) else None

    def identity(self, stage: RecipeStage, **inputs: Any) -> Identity:
        """Return the identity of the inputs of a stage.

        Args:
            stage: Stage whose settings and own code in the recipe count.
            inputs: All other inputs; see `Identity.of`.
        """
        recipe = self.recipe
        return Identity.of({**settings_of(recipe, stage), **code_of(recipe, stage)}, **inputs)

    @property
    def learned(self) -> dict[str, str]:
        """Inputs that all learned results depend on: the space, the task and the images."""
        i = self.run_inputs
        return {
            "space": i.searched.fingerprint,
            "task": content_hash(i.task),
            # The first part is known without decoding an image; see `staleness`.
            "data": f"{i.data.manifest.fingerprint} {i.data.fingerprint}",
        }

    @property
    def training(self) -> Identity:
        """Identity of the inputs of the trained supernet."""
        return self.identity("train", **self.learned, **self.start)

    @cached_property
    def start(self) -> dict[str, str]:
        """Hash of the weights that the supernet starts from, unless they are the space's own."""
        start = self.run_inputs.start
        return {} if start is None else {START: weights_hash(start.tensors)}

    @property
    def continued_training(self) -> Identity:
        """Identity that a checkpoint and a training that continues from it must share."""
        recipe = self.recipe
        return Identity.of(
            {"seed": recipe.seed},
            **self.learned,
            **self.start,
            **code_of(recipe, "train"),
            train=recipe.train.of_supernet.continued_identity,
        )

    def evaluator(self, weights: Mapping[str, Any] | None, goal: SearchGoal) -> Evaluator:
        """Return the evaluator of the recipe, called with the arguments that it takes.

        If the user's own code affects scores, it is part of the evaluator's key.

        Args:
            weights: Weights of the supernet, if there is one.
            goal: Goal, in whose number format networks are scored.
        """
        evaluator = self._plain_evaluator(weights, goal)
        check_key(self.recipe.search.evaluator, evaluator)
        code = code_of(self.recipe, "search")
        return OwnCodeEvaluator(evaluator, code) if code else evaluator

    def _plain_evaluator(
        self, weights: Mapping[str, Any] | None, goal: SearchGoal | None = None
    ) -> Evaluator:
        i, goal = self.run_inputs, goal or SearchGoal(self.recipe.objective)
        known: dict[str, Any] = {"space": i.space, "task": i.task, "data": i.data}
        known |= {"train": self.recipe.train, "seed": self.recipe.seed, "weights": weights}
        known |= {"folder": self._evaluator_folder, **i.searched.roles}
        known |= {"threads": self.recipe.search.cpus_per_worker or 1}
        known |= {"number_format": goal.number_format}
        wanted = inspect.signature(self.run_inputs.evaluator).parameters
        return self.run_inputs.evaluator(**{k: v for k, v in known.items() if k in wanted})

    def is_done(self, stage: RunStage) -> bool:
        """Return whether a stage was finished with the current inputs and its results exist."""
        return self.folder.is_done(stage.name, stage.identity) and stage.made()

    def perform(self, stage: RunStage) -> None:
        """Perform a stage, unless it is done."""
        if self.is_done(stage):
            self.folder.confirm(stage.name)
            return
        self._doubt_later(stage.name)
        record = self.folder.stages.get(stage.name)
        stored = record.identity if record is not None else None
        if stored is not None and (changes := stage.identity.changes_since(stored)):
            goes_on = all(continues(c.name) or c.name in stage.continued for c in changes)
            why = "; ".join(change.text for change in changes)
            what = "continues" if goes_on else "is done again"
            self.reporter.note(f"{stage.name} {what}: {why}", stage=stage.name)
        with self.reporter.stage(stage.name) as advance:
            self.folder.perform(stage.name, stage.identity, lambda: stage.work(advance))

    def _doubt_later(self, stage: str) -> None:
        """Record that all stages that use results of this stage have to be checked again."""
        later, own = later_than(parts_of(stage)[0]), SearchGoal(self.recipe.objective).targets
        self.folder.doubt(
            name
            for name in self.folder.stages
            if parts_of(name)[0] in later and serves(stage, name, own)
        )
