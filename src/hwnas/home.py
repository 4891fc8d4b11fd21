"""Folder of the data that hwnas keeps for a user between runs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """Return ``$HWNAS_HOME``, or ``~/.hwnas`` if that is not set."""
    given = os.environ.get("HWNAS_HOME")
    return Path(given).expanduser() if given else Path.home() / ".hwnas"
