"""Errors of single finalists, which the others survive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hwnas.errors import HwnasError
from hwnas.stages.finalists.shortlist import is_own_fault

__all__ = ["Failures"]


class Failures:
    """Errors of single candidates, by id; raised immediately if no dictionary is given."""

    def __init__(self, found: dict[str, HwnasError] | None) -> None:
        self._found = found

    def __contains__(self, name: str) -> bool:
        return self._found is not None and name in self._found

    def take(self, name: str, error: HwnasError) -> None:
        """Record the error of a candidate, or raise it."""
        if self._found is None or not is_own_fault(error):
            raise error
        self._found[name] = error

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Pass errors raised in the context to `take`."""
        try:
            yield
        except HwnasError as error:
            self.take(name, error)
