"""Hashes of values, by which two of them are known to be the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["content_hash"]


def content_hash(*parts: Any) -> str:
    """Hash of values that JSON, or else ``repr``, can tell apart."""
    return hashlib.sha256(json.dumps(parts, default=repr).encode()).hexdigest()[:16]
