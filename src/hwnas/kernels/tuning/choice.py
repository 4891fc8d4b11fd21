"""Choice of an operator's configuration: measured at its sizes or the nearest, or the default."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import triton

from hwnas.errors import ArtifactError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.sizes import dtype_name, sizes_text
from hwnas.kernels.tuning.constraints import Problem
from hwnas.kernels.tuning.tuned import REFERENCE, TunedEntry, TunedTable, own_path, shipped_path

__all__ = ["KernelChoice", "chosen", "chosen_on", "forget_choices", "known_results"]

_UNMEASURED = "default configuration: nothing near these sizes was measured"
_FAR = 4.0  # distance in powers of two beyond which a result is not used


class Configurable(Protocol):
    """Part of an operator that decides its configurations (`hwnas.kernels.operator.Operator`)."""

    @property
    def name(self) -> str:
        """Name of the operator."""

    def default_config(self, sizes: Mapping[str, int], dtype: torch.dtype) -> Mapping[str, int]:
        """Return a configuration that is allowed on every GPU."""

    def problem(self, sizes: Mapping[str, int], dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem whose solutions are the configurations that may be fast on a GPU."""


@dataclass(frozen=True)
class KernelChoice:
    """Configuration of an operator at some sizes, and whether kernels or PyTorch compute it.

    Attributes:
        config: Configuration of the kernels.
        kernel: False if PyTorch computes the operator, because the reference was measured to be
            faster or nothing was measured on the GPU.
        note: Origin of the configuration, in words.
        entry: Measurement that the choice rests on, if any.
        planned: True if a plan of kernels made the choice, on the GPU that it was written on.
    """

    config: Mapping[str, int]
    kernel: bool = True
    note: str = _UNMEASURED
    entry: TunedEntry | None = None
    planned: bool = False


@lru_cache(maxsize=4096)
def chosen(
    operator: Configurable,
    sizes: tuple[tuple[str, int], ...],
    dtype: torch.dtype,
    device: torch.device,
) -> KernelChoice:
    """Return the choice of an operator, which is cached for the process.

    Args:
        operator: Operator to choose for.
        sizes: Sizes of the inputs, as pairs of name and size.
        dtype: Type of the first input.
        device: Device of the inputs. Only results of this GPU are used; there are none for other
            devices.
    """
    gpu = _gpu(device)
    if gpu is not None:
        return chosen_on(operator, sizes, dtype, gpu)
    default = operator.default_config(dict(sizes), dtype)
    return KernelChoice(
        default, note=f"default configuration: nothing is measured on {device.type}"
    )


def chosen_on(
    operator: Configurable,
    sizes: tuple[tuple[str, int], ...],
    dtype: torch.dtype,
    gpu: Accelerator,
) -> KernelChoice:
    """Return the choice of an operator on a GPU, which need not be here; see `chosen`.

    Kernels are chosen only if a measurement on this GPU, at these sizes or near them, says that
    they are at least as fast as the reference. Otherwise PyTorch computes the operator, with the
    vendor's library.
    """
    default = operator.default_config(dict(sizes), dtype)
    problem = operator.problem(dict(sizes), dtype, gpu)
    entries = known_results(gpu).nearest(operator.name, dtype_name(dtype), dict(sizes))
    for entry in entries:
        if entry.distance(dict(sizes)) > _FAR:
            break
        if not problem.broken(entry.config):
            note = _note(entry, dict(sizes))
            faster = REFERENCE in entry.rivals and entry.beats_reference
            return KernelChoice(entry.config, faster, note, entry)
    return KernelChoice(default, False)


@lru_cache(maxsize=16)
def known_results(gpu: Accelerator) -> TunedTable:
    """Return the results of a GPU, the user's own before the shipped ones; read once in a process.

    A file that cannot be used is left out, with a warning that says why.
    """
    tables = []
    for path in (own_path(gpu), shipped_path(gpu)):
        try:
            tables.append(TunedTable.read(path, gpu))
        except ArtifactError as error:
            warnings.warn(f"tuned kernels: {error}", RuntimeWarning, stacklevel=2)
            tables.append(TunedTable(gpu.name))
    own, shipped = tables
    return own.over(shipped)


def forget_choices() -> None:
    """Clear the caches, so that files are read again after tuning."""
    chosen.cache_clear()
    known_results.cache_clear()


@lru_cache(maxsize=16)
def _gpu(device: torch.device) -> Accelerator | None:
    return Accelerator.here(device.index) if device.type == "cuda" else None


def _note(entry: TunedEntry, sizes: Mapping[str, int]) -> str:
    exact = dict(entry.sizes) == dict(sizes)
    where = "at these sizes" if exact else f"at the nearest sizes, {sizes_text(entry.sizes)}"
    note = f"measured {where}, {entry.date[:10]}"
    then = entry.versions.get("triton")
    return note if then == triton.__version__ else f"{note}, by Triton {then}"
