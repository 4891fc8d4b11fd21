"""Goal of a search: objectives, and the target that they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.recipe import Recipe
from hwnas.run_folder import RunFolder
from hwnas.search.engine.result import Scored
from hwnas.search.objectives.objective import Objective
from hwnas.search_spaces import Candidate, ProductSpace, SearchSpace
from hwnas.search_spaces.space.precision import PRECISION, PrecisionSpace, own_format

__all__ = ["SearchGoal", "goals_of"]

_BITS = {"int8": 8, "fp16": 16, "bf16": 16, "fp32": 32}
"""Width of the numbers, by format."""


@dataclass(frozen=True)
class SearchGoal:
    """Goal of one search of a run.

    Attributes:
        objectives: Objectives of the search.
        target: Target that was added to a finished run; None for the run's own search.
    """

    objectives: tuple[Objective, ...]
    target: str | None = None

    @classmethod
    def specialised(cls, recipe: Recipe, target: str) -> SearchGoal:
        """Return the goal with the recipe's objectives, those on devices on another target.

        Of several objectives of one metric, the first counts. Its limit is kept, except a limit on
        a sum over targets, which does not apply to a single target.

        Raises:
            ConfigError: The target is unknown, or no objective of the recipe has a target.
        """
        name = Target.parse(target).name
        moved: dict[str, Objective] = {}
        for each in recipe.objective:
            if each.all_targets and each.metric not in moved:
                limit = None if each.reduce == "sum" else each.limit
                moved[each.metric] = replace(
                    each, target=name, limit=limit, targets=(), reduce=None
                )
        if not moved:
            raise ConfigError(
                "no objective of the recipe has a target, such as latency_ms, so another target "
                "has no effect"
            )
        others = tuple(o for o in recipe.objective if not o.all_targets)
        return cls((*others, *moved.values()), name)

    @property
    def study_name(self) -> str:
        """Name of the Optuna study."""
        return "search" if self.target is None else f"search@{self.target}"

    def stage(self, name: str) -> str:
        """Return the name of one of the goal's stages in the run's record."""
        return name if self.target is None else f"{name}@{self.target}"

    @property
    def targets(self) -> list[str]:
        """Targets that the objectives name, each once."""
        return list(dict.fromkeys(target for o in self.objectives for target in o.all_targets))

    @property
    def number_formats(self) -> tuple[str, ...]:
        """Number formats of the targets, from the smallest to the largest; fp32 without targets."""
        found = {Target.parse(target).format for target in self.targets}
        return tuple(sorted(found, key=lambda name: (_BITS.get(name, 0), name))) or ("fp32",)

    @property
    def number_format(self) -> str | None:
        """Number format of all networks; None if each candidate names its own."""
        return self.number_formats[0] if len(self.number_formats) == 1 else None

    @property
    def chooses_target(self) -> bool:
        """True if each network ships for the one of several targets that costs it least."""
        return any(objective.reduce == "min" for objective in self.objectives)

    def space(self, candidates: SearchSpace) -> SearchSpace:
        """Return the space to search: the candidates, with a number format if there are several."""
        if self.number_format is not None:
            return candidates
        roles = {**candidates.roles, PRECISION: PrecisionSpace(self.number_formats)}
        return ProductSpace(candidates.network, roles)

    def format_of(self, candidate: Candidate) -> str:
        """Return the number format that a network is scored, measured and shipped in.

        It is the candidate's own, or else the largest of the targets.
        """
        return own_format(candidate) or self.number_formats[-1]

    def targets_of(self, candidate: Candidate) -> list[str]:
        """Return the targets in the number format of a candidate."""
        wanted = self.format_of(candidate)
        return [target for target in self.targets if Target.parse(target).format == wanted]

    def target_of(self, trial: Scored) -> str:
        """Return the target that a network ships for: that of least predicted cost.

        If no objective chooses among targets, it is the first in the network's number format.
        """
        for objective in self.objectives:
            if objective.reduce == "min" and objective.label in trial.estimates:
                return trial.estimates[objective.label].target
        return self.targets_of(trial.candidate)[0]

    def check(self) -> None:
        """Check the targets.

        Raises:
            ConfigError: A target is unknown, or cannot be measured in a metric; the targets have
                several number formats, but no objective chooses among them; or an objective does,
                and is not the only one with a target.
        """
        for metric, target in self.costs:
            DEVICE_METRICS[metric].check(Target.parse(target))
        on_targets = [objective for objective in self.objectives if objective.all_targets]
        if self.chooses_target and len(on_targets) > 1:
            labels = ", ".join(objective.label for objective in on_targets)
            raise ConfigError(
                f'with reduce = "min" a network ships for one of the targets, so the objective has '
                f"to be the only one with a target, but there are {labels}; remove the others"
            )
        if not self.chooses_target and self.number_format is None:
            raise ConfigError(
                "the objectives name targets in several number formats, "
                f"{', '.join(self.number_formats)}, but each network ships in one; name targets in "
                'one format, or give one objective all targets and reduce = "min"'
            )

    @property
    def costs(self) -> list[tuple[str, str]]:
        """Metrics on targets that the objectives name, each pair once."""
        return list(dict.fromkeys((o.metric, t) for o in self.objectives for t in o.all_targets))


def goals_of(folder: RunFolder, revised: Recipe | None = None) -> list[SearchGoal]:
    """Return the run's own goal, then the goals of the targets that were added to it.

    Args:
        folder: Folder of the run.
        revised: Recipe that the run is to continue with; its own if None.
    """
    recipe = revised or folder.recipe
    added = [SearchGoal.specialised(recipe, target) for target in folder.specialised]
    return [SearchGoal(recipe.objective), *added]
