"""Number formats and sparsity structures that a space of quantised networks offers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search_spaces.layers.binarisers import BINARISATIONS, Binarisation
from hwnas.search_spaces.layers.quantisers import FLOAT_BITS, ONE_BIT, Granularity, Symmetry
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["DENSE", "QuantisationConfig", "stored_share", "structure_of"]

DENSE = "dense"
"""Option of ``sparsity`` for weights without zeros."""

_LEAST_BITS, _MOST_BITS = ONE_BIT, 8
_END_BITS = 8  # least bits of the first and the last block

_NAMES = {"granularity": ("tensor", "channel"), "symmetry": ("symmetric", "asymmetric")}


@dataclass(frozen=True)
class QuantisationConfig:
    """Options of the number formats, each from the least precise to the most precise.

    The first and the last block are dense and have at least 8 bits, as is usual, since fewer bits
    there cost far more accuracy than they save.

    Attributes:
        weight_bits: Options for the bits of each block's weights: 1 to 8, and 32 for single
            precision.
        activation_bits: Options for the bits of each block's inputs, likewise.
        granularity: Options for the scales of all weights; see `LayerPrecision`.
        symmetry: Options for the integers of all weights.
        binarisation: Method for weights and inputs of one bit; see
            `hwnas.search_spaces.layers.binarisers`.
        sparsity: Options for the zeros among each block's weights: N of M neighbours along the
            inputs that stay, such as ``"2of4"``, and ``"dense"``.

    Raises:
        ConfigError: An option is unknown, out of range, given twice, or out of order.
    """

    weight_bits: tuple[int, ...] = (2, 4, 8)
    activation_bits: tuple[int, ...] = (4, 8)
    granularity: tuple[Granularity, ...] = ("channel",)
    symmetry: tuple[Symmetry, ...] = ("symmetric",)
    binarisation: Binarisation = "xnor"
    sparsity: tuple[str, ...] = (DENSE,)

    def __post_init__(self) -> None:
        _check_sparsity(self.sparsity)
        if self.is_sparse and ONE_BIT in self.weight_bits:
            raise ConfigError(
                f"space.sparsity is {list(self.sparsity)}, but weights of one bit are signs, none "
                "of which is zero; leave 1 out of space.weight_bits"
            )
        for name in ("weight_bits", "activation_bits"):
            _check_bits(name, getattr(self, name))
        if self.binarisation not in BINARISATIONS:
            expected = closest(str(self.binarisation), BINARISATIONS)
            raise ConfigError(f"space.binarisation is {self.binarisation!r}; {expected}")
        for name, known in _NAMES.items():
            given: tuple[str, ...] = getattr(self, name)
            for option in given:
                if option not in known:
                    raise ConfigError(f"space.{name} has {option!r}; {closest(str(option), known)}")
            if not given or len(set(given)) < len(given):
                raise ConfigError(
                    f"space.{name} is {list(given)}; expected {' or '.join(known)}, or both"
                )

    def at_the_ends(self, options: Sequence[int]) -> tuple[int, ...]:
        """Return the options of the first and the last block; 8 bits if all of them are fewer."""
        return tuple(bits for bits in options if bits >= _END_BITS) or (_END_BITS,)

    @property
    def is_sparse(self) -> bool:
        """True if weights may be pruned."""
        return any(map(structure_of, self.sparsity))

    @property
    def binarises(self) -> bool:
        """True if weights or inputs may have one bit."""
        return ONE_BIT in self.weight_bits or ONE_BIT in self.activation_bits

    @property
    def has_float(self) -> bool:
        """True if a layer may stay in single precision."""
        return FLOAT_BITS in self.weight_bits or FLOAT_BITS in self.activation_bits


def _check_bits(name: str, options: Sequence[int]) -> None:
    for bits in options:
        whole = isinstance(bits, int) and not isinstance(bits, bool)
        if not whole or not (_LEAST_BITS <= bits <= _MOST_BITS or bits == FLOAT_BITS):
            raise ConfigError(
                f"space.{name} has {bits!r}; expected {_LEAST_BITS} to {_MOST_BITS} bits, or "
                f"{FLOAT_BITS} for single precision"
            )
    if not options or list(options) != sorted(set(options)):
        raise ConfigError(
            f"space.{name} is {list(options)}; expected bit widths in rising order, such as "
            "[2, 4, 8]"
        )


def structure_of(option: str) -> Structure | None:
    """Return the structure of an option of ``sparsity``; None for dense weights.

    Raises:
        ConfigError: The option is none.
    """
    if option == DENSE:
        return None
    structure = None
    if isinstance(option, str):
        with contextlib.suppress(ConfigError):
            structure = Structure.parse(option)
    if structure is None or structure.free or structure.density(None) == 1:
        raise ConfigError(
            f'space.sparsity has {option!r}; expected N of M weights, such as "2of4", or "{DENSE}"'
        )
    return structure


def stored_share(option: str) -> float:
    """Return the share of weights that stay under an option of ``sparsity``.

    Raises:
        ConfigError: The option is none.
    """
    structure = structure_of(option)
    return 1.0 if structure is None else structure.density(None)


def _check_sparsity(options: Sequence[str]) -> None:
    densities = [stored_share(option) for option in options]
    if not options or densities != sorted(set(densities)):
        raise ConfigError(
            f"space.sparsity is {list(options)}; expected different densities in rising order, "
            'such as ["2of4", "dense"]'
        )
