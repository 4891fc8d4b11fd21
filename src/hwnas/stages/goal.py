"""Goal of a search: objectives, and the target that they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.recipe import Recipe
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.objective import Objective

__all__ = ["SearchGoal", "goals_of", "searchable"]


def searchable(target: str) -> Target:
    """Parse the name of a target that networks can be searched for.

    Raises:
        ConfigError: The target is unknown, or a bundle for it would hold another network than the
            one that was measured.
    """
    parsed = Target.parse(target)
    if parsed.format != "fp32":
        plain = Target(parsed.device).name
        raise ConfigError(
            f"target {parsed.name}: bundles hold fp32 networks, so they would differ from what "
            f"was measured; search for {plain}, and time {parsed.format} with `hwnas measure`"
        )
    return parsed


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
        name = searchable(target).name
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
    def costs(self) -> list[tuple[str, str]]:
        """Metrics on targets that the objectives name, each pair once."""
        return list(dict.fromkeys((o.metric, t) for o in self.objectives for t in o.all_targets))


def goals_of(folder: RunFolder) -> list[SearchGoal]:
    """Return the run's own goal, then the goals of the targets that were added to it."""
    added = [SearchGoal.specialised(folder.recipe, target) for target in folder.specialised]
    return [SearchGoal(folder.recipe.objective), *added]
