"""Tokens as targets: the byte that follows each byte of a window of text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NO_TOKEN", "TOKENS", "Tokens"]

Tokens = npt.NDArray[np.uint8]
"""uint8 (N, T): bytes of UTF-8, or `NO_TOKEN`."""

TOKENS = 255
"""Number of different tokens: bytes from 0 to 254, since UTF-8 does not use 255."""

NO_TOKEN = 255
"""Value where a window has no further byte; it counts neither in training nor in scoring."""
