"""Agreement on a value between searches that share a storage: the first value offered wins."""

from __future__ import annotations

import contextlib
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from sqlalchemy import exc

from hwnas.errors import StorageError
from hwnas.search.study.storage import close_storage, open_storage, reason_of

__all__ = ["agreed_value"]

_VALUE = "value"


def agreed_value(url: str, name: str, offer: Any = None) -> Any:
    """Return the value that the searches sharing a storage have agreed on under a name.

    All offers under one name are trials of one Optuna study, made only for them. Optuna numbers
    trials under a lock, so all searches see the same offer as the first, even if two arrive at the
    same time.

    Args:
        url: URL of the storage; see `hwnas.search.study.storage.open_storage`.
        name: Name of the value.
        offer: JSON value to agree on if there is none yet; None offers nothing.

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
