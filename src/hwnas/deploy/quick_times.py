"""What networks took in earlier sessions, where nothing disturbed them.

Neighbours on the same hardware can slow a machine for minutes. A session that lies in such minutes
as a whole cannot know it from its own rounds; what the same network once took tells.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from hwnas.atomic import locked, write_json
from hwnas.errors import StorageError
from hwnas.home import home

__all__ = ["QuickTimes"]

SCHEMA = 1
_SESSIONS = 32  # that are remembered; what is forgotten makes room for a machine that has changed
_NETWORKS = 4096
_USUAL = 0.1  # of the sessions were quicker: most may lie in slow minutes


class QuickTimes:
    """What quick rounds took in earlier sessions, on this machine.

    A file that cannot be read or written is no error: nothing is remembered then.

    Args:
        path: The file; ``$HWNAS_HOME/quick_times.json`` if None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = home() / "quick_times.json" if path is None else path

    @cached_property
    def _sessions(self) -> dict[str, list[float]]:
        return self._read()

    def usual_ms(self, network: str) -> float | None:
        """Of a network, whose name tells where it runs, too; None if it is not known."""
        known = self._sessions.get(network, [])
        return float(np.quantile(known, _USUAL, method="lower")) if known else None

    def remember(self, quick_ms: Mapping[str, float]) -> None:
        """Add a session: its quick time for each network."""
        with contextlib.suppress(StorageError), locked(self.path.parent):
            sessions = self._read()
            for network, ms in quick_ms.items():
                sessions[network] = [*sessions.pop(network, []), ms][-_SESSIONS:]
            forgotten = max(0, len(sessions) - _NETWORKS)
            self._sessions = dict(islice(sessions.items(), forgotten, None))
            write_json(self.path, {"schema": SCHEMA, "quick_ms": self._sessions})

    def _read(self) -> dict[str, list[float]]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            found = {str(k): [float(ms) for ms in own] for k, own in data["quick_ms"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}
        return found if all(0 < ms < math.inf for own in found.values() for ms in own) else {}
