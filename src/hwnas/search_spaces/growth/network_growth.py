"""Growth of the networks of a search space (EAS, Cai et al., AAAI 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.cutting import shapes_of
from hwnas.search_spaces.growth.growth_plan import GrowthPlan, plan_growth, why_smaller
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.search_space import SearchSpace

__all__ = ["NetworkGrowth"]

_IMAGES = 2  # random images that plans are tested on


class NetworkGrowth:
    """Function-preserving transformations between the networks of a space.

    It works for every space whose networks share weights, the space of a user's own model included.
    Channels, heads, kernels and depths can grow, wherever that is exact: each pair of networks is
    tested once. Not exact, and refused, are for example new layers before a GELU, a layer
    normalisation of channels that are not a multiple of the old, and another size of images.

    Args:
        space: Space of the networks.

    Raises:
        ConfigError: The networks of the space share no weights.
    """

    def __init__(self, space: SearchSpace) -> None:
        if not space.nests:
            raise ConfigError(
                f"networks of space {space.name!r} cannot grow, since they share no weights"
            )
        self.space = space
        self._plans: dict[tuple[Architecture, Architecture], GrowthPlan | str] = {}
        self._shapes: dict[Architecture, dict[str, torch.Size]] = {}

    def can_grow(self, parent: Architecture, child: Architecture) -> bool:
        """Return whether the child is the parent, or can start with the parent's function."""
        return not isinstance(self._plan(parent, child), str)

    def moves(self, parent: Architecture) -> Mapping[str, Architecture]:
        """Return the next larger networks, each by the choice that takes its next option.

        Choices that only the larger network has, as those of a new block, take their first options.
        If the network cannot start with the parent's function then, they take their last ones.
        """
        return dict(self._moves(parent))

    def grows(self, parent: Architecture) -> bool:
        """Return whether a network can grow at all."""
        return next(self._moves(parent), None) is not None

    def grow(
        self,
        parent: Architecture,
        weights: Mapping[str, Tensor],
        child: Architecture,
        seed: int,
        inputs: Tensor | None = None,
    ) -> nn.Module:
        """Return a larger network that computes the same outputs, up to rounding.

        Args:
            parent: Architecture of the weights.
            weights: State dict of the parent, on the CPU.
            child: Architecture to build.
            seed: Seed of the replicas and of the weights of new layers.
            inputs: Inputs (N, C, H, W) from which new batch normalisations in chains get their
                statistics; random ones if None.

        Returns:
            The network on the CPU, in training mode.

        Raises:
            ConfigError: The child cannot start with the parent's function.
        """
        found = self._plan(parent, child)
        if isinstance(found, str):
            raise ConfigError(
                f"network {child.id} cannot start from {parent.id}: {found}; train it from the "
                "start"
            )
        network = self._built(child, seed)
        if child == parent:
            network.load_state_dict(weights)
        else:
            found.apply(network, weights, seed, self._example(child) if inputs is None else inputs)
        return network

    def _moves(self, parent: Architecture) -> Iterator[tuple[str, Architecture]]:
        values = self.space.check(parent).as_dict()
        ends = [{c.name: c.options[end] for c in self.space.choices} for end in (0, -1)]
        for choice in self.space.choices:
            if choice.name not in values or values[choice.name] == choice.options[-1]:
                continue
            larger = choice.options[choice.index(values[choice.name]) + 1]
            for end in ends:
                child = self.space.architecture({**end, **values, choice.name: larger})
                if self.can_grow(parent, child):
                    yield choice.name, child
                    break

    def _plan(self, parent: Architecture, child: Architecture) -> GrowthPlan | str:
        """Return the plan for two networks, or the reason why there is none."""
        if parent == child:
            return GrowthPlan({})
        if (parent, child) not in self._plans:
            self._plans[parent, child] = self._planned(parent, child)
        return self._plans[parent, child]

    def _planned(self, parent: Architecture, child: Architecture) -> GrowthPlan | str:
        if self.space.input_shape(parent) != self.space.input_shape(child):
            return "it takes images of another size"
        if reason := why_smaller(*(self._shapes_of(each) for each in (parent, child))):
            return reason
        try:
            small, large = (self._built(each, seed=0) for each in (parent, child))
            return plan_growth(small, large, self._example(child))
        except ConfigError as error:
            return str(error)

    def _shapes_of(self, architecture: Architecture) -> dict[str, torch.Size]:
        if architecture not in self._shapes:
            with torch.device("meta"):
                self._shapes[architecture] = shapes_of(self.space.build(architecture))
        return self._shapes[architecture]

    def _built(self, architecture: Architecture, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.space.build(architecture)

    def _example(self, architecture: Architecture) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(_IMAGES, *self.space.input_shape(architecture), generator=generator)
