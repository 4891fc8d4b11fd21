"""Trained weights that the training of a supernet starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hwnas.errors import ArtifactError, ConfigError
from hwnas.search.training.checkpoint import differing_keys, load_weights
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["StartWeights"]


@dataclass(frozen=True, eq=False)
class StartWeights:
    """Weights of another supernet, as far as a supernet takes them over.

    Attributes:
        tensors: Tensors by their name in the largest network.
        fresh: Names of the tensors of the output layer that start at random, because the other
            supernet has another number of outputs.
    """

    tensors: Mapping[str, Tensor]
    fresh: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, space: SearchSpace, outputs: int) -> StartWeights:
        """Read the weights of a supernet of the same space; its outputs may be others.

        Args:
            path: Safetensors file.
            space: Space of the supernet that takes the weights.
            outputs: Length of the output vector of its networks.

        Raises:
            ConfigError: The file is missing, is no safetensors file, or holds weights of other
                networks.
        """
        try:
            given = load_weights(path)
        except ArtifactError as error:
            raise ConfigError(
                f"train.weights: {path} cannot be read as a safetensors file; name a run with a "
                "trained supernet, or its file supernet/weights.safetensors"
            ) from error
        with blueprint():
            wanted = space.shared_network().state_dict()
        fresh = [
            name
            for name, tensor in wanted.items()
            if name in given and _differs_in_outputs(given[name], tensor, outputs)
        ]
        taken = _without(given, fresh)
        different = differing_keys(taken, _without(wanted, fresh))
        if different:
            raise ConfigError(
                f"train.weights: {path} does not fit space {space.name}: {different}; name the "
                "supernet of a run with the same [space] and as many image channels"
            )
        return cls(taken, tuple(fresh))


def _differs_in_outputs(given: Tensor, wanted: Tensor, outputs: int) -> bool:
    """Return whether two tensors are alike, but for the number of outputs."""
    return (
        given.dim() == wanted.dim() > 0
        and given.shape[0] != wanted.shape[0] == outputs
        and given.shape[1:] == wanted.shape[1:]
    )


def _without(tensors: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}
