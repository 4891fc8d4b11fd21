"""Variants by name, also those whose name describes them."""

from __future__ import annotations

from hwnas.deploy.variants.registry import VARIANTS
from hwnas.deploy.variants.sparse import PREFIX, Sparse
from hwnas.deploy.variants.variant import Variant
from hwnas.errors import ConfigError
from hwnas.plugin import closest

__all__ = ["variant_named"]


def variant_named(name: str) -> Variant:
    """Return the variant of a name: one of `VARIANTS`, or a sparse one that the name describes.

    Raises:
        ConfigError: There is no such variant; the message says what is known.
    """
    if name in VARIANTS:
        return VARIANTS[name]
    if name.startswith(PREFIX):
        return Sparse.parse(name)
    raise ConfigError(f"unknown variant {name!r}; {closest(name, VARIANTS)}")
