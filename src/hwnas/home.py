"""The folder of what hwnas keeps for a user from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """``$HWNAS_HOME``; ``~/.hwnas`` if that is not set."""
    given = os.environ.get("HWNAS_HOME")
    return Path(given).expanduser() if given else Path.home() / ".hwnas"
