"""Latency history: times of networks in earlier sessions, when nothing disturbed them.

Other users of the same hardware can slow a machine down for minutes. A session that lies entirely
in such a period cannot detect it from its own timing rounds, but the earlier times of the same
network reveal it.
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

__all__ = ["LatencyHistory"]

SCHEMA = 1
_SESSIONS = 32  # the latest of each network; older ones are dropped, as machines change
_NETWORKS = 4096
_USUAL = 0.1  # quantile over sessions: most of them may lie in disturbed periods


class LatencyHistory:
    """History of the undisturbed latencies of networks on this machine.

    A file that cannot be read or written is not an error; the history is then empty.

    Args:
        path: File of the history; ``$HWNAS_HOME/quick_times.json`` if None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = home() / "quick_times.json" if path is None else path

    @cached_property
    def _sessions(self) -> dict[str, list[float]]:
        return self._read()

    def usual_ms(self, network: str) -> float | None:
        """Return the undisturbed time of a network in milliseconds, or None if it is not known.

        Args:
            network: Name of the network, which includes where it runs.
        """
        known = self._sessions.get(network, [])
        return float(np.quantile(known, _USUAL, method="lower")) if known else None

    def remember(self, quick_ms: Mapping[str, float]) -> None:
        """Add a session to the history.

        Args:
            quick_ms: Undisturbed time of each network in the session, in milliseconds.
        """
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
