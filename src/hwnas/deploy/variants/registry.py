"""Registry of variants.

To add one, write a module here with a tuple ``PLUGINS``, as in `sparse`; no list names it.
"""

from __future__ import annotations

from hwnas.deploy.variants.variant import Variant
from hwnas.registry import Registry

__all__ = ["VARIANTS"]

VARIANTS: Registry[Variant] = Registry("variant", __package__)
"""Variants by their names on the command line and in bundles."""
