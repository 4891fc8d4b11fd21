"""Objectives of a stored study, and their comparison with the wanted ones."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection

from hwnas.search.objectives.objective import Objective

__all__ = ["other_objectives", "study_of"]

_METRIC_NAMES = "study:metric_names"
"""System attribute in which Optuna's `Study.set_metric_names` keeps the names that its plots and
dashboard show."""


def study_of(storage: BaseStorage, name: str, objectives: Sequence[Objective]) -> int:
    """Return the id of a study; a new study is created with the names of its objectives."""
    directions = [StudyDirection[o.direction.upper()] for o in objectives]
    try:
        study_id = storage.get_study_id_from_name(name)
    except KeyError:
        with contextlib.suppress(DuplicatedStudyError):  # another process was faster
            storage.create_new_study(directions, name)
        study_id = storage.get_study_id_from_name(name)
    # Also for a study that exists: a kill may have come between its creation and this step.
    if storage.get_study_directions(study_id) == directions and not storage.get_n_trials(study_id):
        names = storage.get_study_system_attrs(study_id).get(_METRIC_NAMES)
        if names is None:
            labels = [o.label for o in objectives]
            storage.set_study_system_attr(study_id, _METRIC_NAMES, labels)
    return study_id


def other_objectives(
    storage: BaseStorage, study_id: int, objectives: Sequence[Objective]
) -> str | None:
    """Describe how a study's objectives differ from the wanted ones; return None if they do not.

    Studies of an older hwnas have no metric names; then only directions are compared.
    """
    known = [d.name.lower() for d in storage.get_study_directions(study_id)]
    wanted = [o.direction for o in objectives]
    names = storage.get_study_system_attrs(study_id).get(_METRIC_NAMES)
    if names is None:
        if known == wanted:
            return None
        return f"it has {_listed(known)}, the recipe has {_listed(wanted)}"
    theirs = [f"{name} ({way})" for name, way in zip(names, known, strict=True)]
    ours = [f"{o.label} ({o.direction})" for o in objectives]
    if theirs == ours:
        return None
    if sorted(theirs) == sorted(ours):
        return (
            f"the same in another order; it has {_listed(theirs)}, the recipe has {_listed(ours)}"
        )
    only_theirs = [each for each in theirs if each not in ours]
    only_ours = [each for each in ours if each not in theirs]
    parts = [f"it has {_listed(only_theirs)}"] if only_theirs else []
    parts += [f"the recipe has {_listed(only_ours)}"] if only_ours else []
    return f"{', '.join(parts)}{' in addition' if len(parts) == 1 else ''}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words)
