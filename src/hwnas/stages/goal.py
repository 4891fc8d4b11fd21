"""Goal of a search: objectives, and the target that they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.recipe import Recipe
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.objective import Objective

__all__ = ["SearchGoal", "goals_of"]


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
    def number_format(self) -> str:
        """Number format that networks are scored, measured and shipped in.

        Raises:
            ConfigError: The targets have several formats.
        """
        found = {Target.parse(target).format: target for target in self.targets}
        if len(found) > 1:
            raise ConfigError(
                f"the objectives name targets in several number formats, {', '.join(found)}, but "
                "each network of a search ships in one; name targets in one format, and search "
                "for the others in runs of their own"
            )
        return next(iter(found), "fp32")

    def check(self) -> None:
        """Check the targets.

        Raises:
            ConfigError: A target is unknown, or cannot be measured in a metric, or the targets have
                several number formats.
        """
        for metric, target in self.costs:
            DEVICE_METRICS[metric].check(Target.parse(target))
        _ = self.number_format

    @property
    def costs(self) -> list[tuple[str, str]]:
        """Metrics on targets that the objectives name, each pair once."""
        return list(dict.fromkeys((o.metric, t) for o in self.objectives for t in o.all_targets))


def goals_of(folder: RunFolder) -> list[SearchGoal]:
    """Return the run's own goal, then the goals of the targets that were added to it."""
    added = [SearchGoal.specialised(folder.recipe, target) for target in folder.specialised]
    return [SearchGoal(folder.recipe.objective), *added]
