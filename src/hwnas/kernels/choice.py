"""Which configuration an operator takes: measured at its sizes or the nearest, or the default."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton

from hwnas.errors import ArtifactError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.sizes import dtype_name, sizes_text
from hwnas.kernels.tuned import REFERENCE, Entry, TunedTable, own_path, shipped_path

if TYPE_CHECKING:
    from hwnas.kernels.operator import Operator

__all__ = ["Choice", "chosen", "chosen_on", "forget_choices", "known_results"]

_UNMEASURED = "default configuration: nothing near these sizes was measured"
_FAR = 4.0  # powers of two, beyond which a result says nothing


@dataclass(frozen=True)
class Choice:
    """What an operator does with some sizes.

    Attributes:
        config: The configuration of its kernels.
        kernel: False where PyTorch computes it: the reference was measured to be faster, or
            nothing was measured on the GPU.
        note: Where the configuration is from, in words.
        entry: The measurement that it rests on, if any.
    """

    config: Mapping[str, int]
    kernel: bool = True
    note: str = _UNMEASURED
    entry: Entry | None = None


@lru_cache(maxsize=4096)
def chosen(
    operator: Operator,
    sizes: tuple[tuple[str, int], ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Choice:
    """The choice of an operator; found once a process.

    Args:
        operator: The operator.
        sizes: Of its inputs, pairs of name and size.
        dtype: Of its first input.
        device: Where the inputs are. Results are those of this card; others have none.
    """
    card = _card(device)
    if card is not None:
        return chosen_on(operator, sizes, dtype, card)
    default = operator.default_config(dict(sizes), dtype)
    return Choice(default, note=f"default configuration: nothing is measured on {device.type}")


def chosen_on(
    operator: Operator,
    sizes: tuple[tuple[str, int], ...],
    dtype: torch.dtype,
    card: Accelerator,
) -> Choice:
    """Return the choice of an operator on a GPU, which need not be here; see `chosen`.

    Kernels are chosen only where a measurement on this GPU, at these sizes or near them, says that
    they are at least as fast as the reference. Else PyTorch, so the vendor's library, computes.
    """
    default = operator.default_config(dict(sizes), dtype)
    problem = operator.problem(dict(sizes), dtype, card)
    entries = known_results(card).nearest(operator.name, dtype_name(dtype), dict(sizes))
    for entry in entries:
        if entry.distance(dict(sizes)) > _FAR:
            break
        if not problem.broken(entry.config):
            note = _note(entry, dict(sizes))
            faster = REFERENCE in entry.rivals and entry.beats_reference
            return Choice(entry.config, faster, note, entry)
    return Choice(default, False)


@lru_cache(maxsize=16)
def known_results(card: Accelerator) -> TunedTable:
    """Results of a card, the user's own before those that are shipped; read once a process.

    A file that cannot be used is left out, and a warning says why.
    """
    tables = []
    for path in (own_path(card), shipped_path(card)):
        try:
            tables.append(TunedTable.read(path, card))
        except ArtifactError as error:
            warnings.warn(f"tuned kernels: {error}", RuntimeWarning, stacklevel=2)
            tables.append(TunedTable(card.name))
    own, shipped = tables
    return own.over(shipped)


def forget_choices() -> None:
    """Let files be read again, after something was tuned."""
    chosen.cache_clear()
    known_results.cache_clear()


@lru_cache(maxsize=16)
def _card(device: torch.device) -> Accelerator | None:
    return Accelerator.here(device.index) if device.type == "cuda" else None


def _note(entry: Entry, sizes: Mapping[str, int]) -> str:
    exact = dict(entry.sizes) == dict(sizes)
    where = "at these sizes" if exact else f"at the nearest sizes, {sizes_text(entry.sizes)}"
    note = f"measured {where}, {entry.date[:10]}"
    then = entry.versions.get("triton")
    return note if then == triton.__version__ else f"{note}, by Triton {then}"
