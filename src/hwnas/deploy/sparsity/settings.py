"""Settings of a sparse network, and the name that stands for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hwnas.deploy.sparsity.criteria import CRITERIA
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["SparsitySettings"]

_SEARCHED, _BY_MACS, _REFINED = "searched", "macs", "refined"


@dataclass(frozen=True)
class SparsitySettings:
    """Way to prune a network.

    Attributes:
        structure: Structure of the zeros.
        density: Share of weights that stay in the pruned layers, in (0, 1]; as the structure has it
            if None.
        criterion: Name of the criterion, one of `CRITERIA`.
        searched: True if the density of each layer is searched, with the given one on average.
        by_macs: True if the average of densities is over multiply-accumulates instead of weights.
        refined: True if each pruned layer is refined by block coordinate descent.
    """

    structure: Structure = field(default_factory=Structure)
    density: float | None = None
    criterion: str = "obs"
    searched: bool = False
    by_macs: bool = False
    refined: bool = False

    def __post_init__(self) -> None:
        self.structure.density(self.density)  # raises if it is out of reach
        if self.criterion not in CRITERIA:
            known = closest(self.criterion, CRITERIA)
            raise ConfigError(f"unknown pruning criterion {self.criterion!r}; {known}")
        if self.searched and not self.structure.free:
            raise ConfigError(
                f"structure {self.structure.name} fixes the density of every layer, so none can be "
                f"searched; leave out {_SEARCHED!r}, or choose unstructured or blocks"
            )
        if self.by_macs and not self.searched:
            raise ConfigError(
                f"{_BY_MACS!r} is for searched densities of layers; add {_SEARCHED!r}"
            )

    @property
    def share(self) -> float:
        """Share of the weights that stay on average."""
        return self.structure.density(self.density)

    @property
    def words(self) -> tuple[str, ...]:
        """Words that `parse` reads, as ``("block16x16", "25", "searched")``."""
        density = () if self.density is None else (f"{100 * self.density:g}",)
        criterion = () if self.criterion == "obs" else (self.criterion,)
        flags = ((self.searched, _SEARCHED), (self.by_macs, _BY_MACS), (self.refined, _REFINED))
        return (
            self.structure.name,
            *density,
            *criterion,
            *(word for given, word in flags if given),
        )

    @classmethod
    def parse(cls, words: Sequence[str]) -> SparsitySettings:
        """Return the settings that words name.

        Args:
            words: The structure, then in any order the density in percent, a criterion and flags.

        Raises:
            ConfigError: A word is unknown or given twice, or the settings are impossible.
        """
        structure, *others = words or ("",)
        found: dict[str, object] = {"structure": Structure.parse(structure)}
        for word in others:
            key, value = _meaning(word)
            if key in found:
                raise ConfigError(f"{'-'.join(words)} names its {key} twice; name it once")
            found[key] = value
        return cls(**found)  # type: ignore[arg-type]


def _meaning(word: str) -> tuple[str, object]:
    flags = {_SEARCHED: "searched", _BY_MACS: "by_macs", _REFINED: "refined"}
    if word in flags:
        return flags[word], True
    if word in CRITERIA:
        return "criterion", word
    try:
        return "density", float(word) / 100
    except ValueError:
        known = closest(word, [*flags, *CRITERIA])
        raise ConfigError(
            f"{word!r} is neither a density in percent nor another word of a sparse variant; "
            f"{known}"
        ) from None
