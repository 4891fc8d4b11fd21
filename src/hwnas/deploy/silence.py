"""Suppression of what libraries in C++ write to the process's own streams."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

__all__ = ["silenced"]


@contextmanager
def silenced(stream: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Suppress all output to a stream within this context, also of code that is not Python's."""
    descriptor = {"stdout": 1, "stderr": 2}[stream]
    getattr(sys, stream).flush()
    kept = os.dup(descriptor)
    try:
        with tempfile.TemporaryFile() as nowhere:
            os.dup2(nowhere.fileno(), descriptor)
            yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
