"""Cache of outputs by the pixels of the images that they belong to.

An image is known by a hash of its pixels, its shape and its type, and of the description of the
model, which contains the preprocessing and checksums of all files. So an answer is never given to
another image, nor for another model or preprocessing. As an option, an image that is nearly equal
to a known one gets that one's answer; see `hwnas.deploy.caching.near`.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.caching.near import NearIndex, NearRule
from hwnas.errors import ConfigError

__all__ = ["CacheCounts", "PredictionCache"]

_ENTRY_BYTES = 600
"""Memory of an entry beside its arrays: key, tuple, headers of arrays, places in two tables."""

Arrays = tuple[NDArray[Any], ...]
Compute = Callable[[NDArray[np.uint8]], Arrays]
"""Function from images (N, H, W, C) to arrays (N, ...), such as outputs."""


@dataclass(frozen=True)
class CacheCounts:
    """Numbers of images that went through a cache, and its size.

    Attributes:
        hits: Images whose pixels were known.
        near_hits: Images that were nearly equal to a known one.
        misses: Images that were computed.
        evicted: Entries that were removed to make room.
        entries: Entries now.
        bytes: Memory of the entries now, estimated.
    """

    hits: int = 0
    near_hits: int = 0
    misses: int = 0
    evicted: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def images(self) -> int:
        """Number of images."""
        return self.hits + self.near_hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Share of the images that were not computed; 0 without images."""
        return (self.hits + self.near_hits) / self.images if self.images else 0.0


@dataclass(frozen=True, eq=False)
class _Entry:
    rows: Arrays
    size: int
    index: NearIndex | None


class PredictionCache:
    """Least recently used cache of outputs, which several threads and models may share.

    Two threads that miss the same image at the same time both compute it. Outputs that are NaN or
    infinite are not kept.

    Args:
        max_bytes: Largest memory of all entries, in bytes; estimated from the sizes of the arrays.
        max_entries: Largest number of entries.
        near: Rule for images that are nearly equal to a known one; None for equal images only.

    Raises:
        ConfigError: A limit is not a number above 0.
    """

    def __init__(
        self,
        max_bytes: float = 64e6,
        max_entries: int = 100_000,
        near: NearRule | None = None,
    ) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_entries", max_entries)):
            if not 1 <= value < math.inf:
                raise ConfigError(f"{name} of a cache is {value:g}; expected a number from 1 on")
        self._max_bytes, self._max_entries, self.near = max_bytes, int(max_entries), near
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._indices: dict[tuple[bytes, int], NearIndex] = {}
        self._counts, self._bytes = CacheCounts(), 0
        self._lock = threading.Lock()

    @property
    def counts(self) -> CacheCounts:
        """Counts so far."""
        with self._lock:
            return replace(self._counts, entries=len(self._entries), bytes=self._bytes)

    def clear(self) -> None:
        """Remove all entries and counts."""
        with self._lock:
            self._entries.clear()
            self._indices.clear()
            self._counts, self._bytes = CacheCounts(), 0

    def through(self, model: bytes, images: NDArray[np.uint8], compute: Compute) -> Arrays:
        """Return the arrays of images, computing those of unknown images only.

        Args:
            model: Fingerprint of all that the arrays depend on beside the pixels, such as
                `hwnas.deploy.Bundle.fingerprint`.
            images: uint8 (N, H, W, C).
            compute: Function that is called at most once, with the unknown images, each once.

        Returns:
            What ``compute`` would return for all images. Rounding may differ in the last digits, as
            it depends on the images that were computed together.
        """
        if len(images) == 0 or images.ndim != 4 or images.dtype != np.uint8:
            return compute(images)  # which refuses them
        keys = [_key(model, image) for image in images]
        some = None if self.near is None else self.near.signatures(images)
        found, near = self._known(model, keys, some)
        places = {key: place for place, key in reversed([*enumerate(keys)]) if key not in found}
        unknown = sorted(places.values())
        if unknown:
            arrays = compute(images[unknown])
            rows = [tuple(np.array(array[i]) for array in arrays) for i in range(len(unknown))]
            computed = {keys[place]: row for place, row in zip(unknown, rows, strict=True)}
            self._keep(model, computed, None if some is None else some[unknown])
            found |= computed
        self._count(len(keys) - near - len(unknown), near, len(unknown))
        every = [found[key] for key in keys]
        return tuple(np.stack([row[i] for row in every]) for i in range(len(every[0])))

    def _known(
        self, model: bytes, keys: Sequence[bytes], some: NDArray[np.float32] | None
    ) -> tuple[dict[bytes, Arrays], int]:
        """Return the arrays of known images by key, and the number of images that are only near."""
        found: dict[bytes, Arrays] = {}
        near = 0
        with self._lock:
            index = None if some is None else self._indices.get((model, some.shape[1]))
            for place, key in enumerate(keys):
                used: bytes | None = key if key in self._entries else None
                if used is None and index is not None and some is not None:
                    used = index.nearest(some[place])
                    near += used is not None
                if used is not None:
                    self._entries.move_to_end(used)
                    found[key] = self._entries[used].rows
        return found, near

    def _keep(
        self, model: bytes, computed: dict[bytes, Arrays], some: NDArray[np.float32] | None
    ) -> None:
        """Add computed arrays, and remove the entries that were not used for the longest time."""
        with self._lock:
            for place, (key, rows) in enumerate(computed.items()):
                size = _ENTRY_BYTES + sum(row.nbytes for row in rows)
                size += 0 if some is None else some[place].nbytes
                finite = all(np.isfinite(row).all() for row in rows)
                if not finite or size > self._max_bytes or key in self._entries:
                    continue
                index = None
                if some is not None and self.near is not None:
                    new = NearIndex(self.near, some.shape[1])
                    index = self._indices.setdefault((model, some.shape[1]), new)
                    index.add(key, some[place])
                self._entries[key] = _Entry(rows, size, index)
                self._bytes += size
            while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
                self._evict()

    def _evict(self) -> None:
        key, entry = self._entries.popitem(last=False)
        self._bytes -= entry.size
        if entry.index is not None:
            entry.index.remove(key)
        self._counts = replace(self._counts, evicted=self._counts.evicted + 1)

    def _count(self, hits: int, near: int, misses: int) -> None:
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                hits=now.hits + hits,
                near_hits=now.near_hits + near,
                misses=now.misses + misses,
            )


def _key(model: bytes, image: NDArray[np.uint8]) -> bytes:
    """Return the hash of an image, together with its shape and type and the model."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(hashlib.sha256(model).digest())
    digest.update(f"{image.dtype.str}{image.shape}\n".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()
