"""Values that searches which share a storage agree on: the first that any of them offers."""

from __future__ import annotations

import contextlib
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from sqlalchemy import exc

from hwnas.errors import StorageError
from hwnas.search.storage import close_storage, open_storage, reason_of

__all__ = ["agreed_value"]

_VALUE = "value"


def agreed_value(url: str, name: str, offer: Any = None) -> Any:
    """Return what the searches that share a storage have agreed on under a name.

    An offer is a trial of a study of its own. Optuna numbers trials under a lock, so of two offers
    at once all see the same one as the first.

    Args:
        url: Of the storage; see `hwnas.search.storage.open_storage`.
        name: Of what is agreed on.
        offer: A JSON value to agree on where there is none yet; None offers nothing.

    Returns:
        The first offer; None if there is none.

    Raises:
        ConfigError: The URL is wrong, or a package is missing.
        StorageError: The storage cannot be reached.
    """
    storage = open_storage(url)
    try:
        with contextlib.suppress(DuplicatedStudyError):
            storage.create_new_study([StudyDirection.MINIMIZE], name)
        study = storage.get_study_id_from_name(name)
        if offer is not None:
            attributes = {_VALUE: offer}
            trial = create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs=attributes)
            storage.create_new_trial(study, trial)
        offers = storage.get_all_trials(study, deepcopy=False)
    except (exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StorageError(f"cannot use the storage {url}: {reason_of(error)}") from None
    finally:
        close_storage(storage)
    return min(offers, key=lambda trial: trial.number).user_attrs[_VALUE] if offers else None
