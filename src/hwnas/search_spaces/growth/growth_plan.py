"""Plan of how a network grows into another one, found from their modules and tested.

Function-preserving transformations: Net2WiderNet and Net2DeeperNet (Chen, Goodfellow and Shlens,
ICLR 2016), for networks of any family whose modules have the same names. Which channels belong
together is found as for models of a user's own (docs/decisions/010-models-of-ones-own.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.axes import Axis, held
from hwnas.search_spaces.any_model.cutting import cut, plan, shapes_of
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.narrowing import all_groups
from hwnas.search_spaces.any_model.trial import alike, checked_output, scrambled
from hwnas.search_spaces.growth.new_layers import fewest, make_identity, new_layers, silence
from hwnas.search_spaces.growth.replicas import widened

__all__ = ["GrowthPlan", "plan_growth", "why_smaller"]

_NOT_IDENTITY = (
    "cannot start without an effect: they are not the branches of residual blocks that an "
    "activation such as ReLU follows, and not convolutions between such activations (ReLU keeps "
    "what it has returned, GELU and others change it)"
)
_NOT_FOLLOWED = "its channels or heads cannot be matched with those of the smaller network"
_NOT_REPLICABLE = (
    "its wider layers would compute something else: replicated channels change what is computed "
    "over all channels, such as a layer normalisation, unless their number is a multiple of the old"
)


@dataclass(frozen=True)
class GrowthPlan:
    """Way in which a network starts with the function of a smaller one.

    Attributes:
        widths: Channels of each group of the larger network in the smaller one; wider groups
            replicate channels.
        silent: New layers that start with zeros, each the last one of a residual branch.
        identical: New layers that start as the identity.
    """

    widths: Mapping[ChannelGroup, int]
    silent: tuple[str, ...] = ()
    identical: tuple[str, ...] = ()

    def apply(
        self, network: nn.Module, weights: Mapping[str, Tensor], seed: int, inputs: Tensor
    ) -> None:
        """Give a network the function of the smaller one, in place.

        Larger kernels have zeros around the old ones.

        Args:
            network: Network of the sizes that the plan was made for. New layers keep its weights,
                except for those that have to be zero or the identity.
            weights: State dict of the smaller network.
            seed: Seed of the replicas and of their shares.
            inputs: Inputs (N, C, H, W) of the network, from which new batch normalisations that
                start as the identity get their statistics; training inputs if there are any.
        """
        narrow = self.deepened(cut(network, plan(network, self.widths)), weights, inputs)
        generator = torch.Generator().manual_seed(seed)
        state = narrow.state_dict()
        network.load_state_dict(widened(state, network, self.widths, generator))

    def deepened(
        self, narrow: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor
    ) -> nn.Module:
        """Return a network that is as wide as the smaller one, with its function; see `apply`."""
        state = narrow.state_dict()
        state |= {name: _padded(value, state[name].shape) for name, value in weights.items()}
        narrow.load_state_dict(state)
        narrow.eval()
        silence(narrow, self.silent, weights)
        make_identity(narrow, self.identical, inputs)
        return narrow


def plan_growth(parent: nn.Module, child: nn.Module, example: Tensor) -> GrowthPlan:
    """Return how a network can start with the function of a smaller one.

    The plan is tested: with random weights, both networks have the same outputs for the example in
    evaluation mode. Replicated channels and silent blocks also keep the outputs in training mode,
    if there is no dropout.

    Args:
        parent: Smaller network.
        child: Larger network. Each tensor of the smaller network is in it under the same name, at
            least as large. Both networks are on the CPU and are put into evaluation mode; their
            weights have no effect.
        example: Input (N, C, H, W) of both networks.

    Raises:
        ConfigError: The larger network cannot compute the function of the smaller one, or the
            channels of the networks cannot be followed.
    """
    old = shapes_of(parent.eval())
    if reason := why_smaller(old, shapes_of(child.eval())):
        raise ConfigError(reason)
    source = scrambled(parent, example)
    weights, expected = source.state_dict(), checked_output(source, example)
    with torch.enable_grad():  # channels are followed through autograd's graph
        groups, _ = all_groups(child, example)
    widths = _old_widths(child, groups, old)
    narrow = cut(child, plan(child, widths))
    _check_sizes(narrow, old)
    try:
        narrow = scrambled(narrow, example)
    except ConfigError:  # it does not run
        raise ConfigError(_NOT_FOLLOWED) from None
    found = _deepening(GrowthPlan(widths), narrow, weights, example, expected)
    larger = scrambled(child, example)
    found.apply(larger, weights, 0, example)
    if not _computes(larger, example, expected):
        raise ConfigError(_NOT_REPLICABLE)
    return found


def _computes(network: nn.Module, example: Tensor, expected: Tensor) -> bool:
    """Return whether a network runs and has the expected output."""
    try:
        return alike(checked_output(network, example), expected)
    except ConfigError:  # the graph of the larger network may have missed a dependency
        return False


def why_smaller(old: Mapping[str, torch.Size], new: Mapping[str, torch.Size]) -> str:
    """Return which tensor is missing or smaller in a network of these shapes; empty if none is."""
    for name, shape in old.items():
        if name not in new:
            return f"it has no {name}"
        if len(shape) != len(new[name]) or any(
            a > b for a, b in zip(shape, new[name], strict=True)
        ):
            return f"its {name} has the shape {tuple(new[name])}, smaller than {tuple(shape)}"
    return ""


def _deepening(
    wider: GrowthPlan,
    narrow: nn.Module,
    weights: Mapping[str, Tensor],
    example: Tensor,
    expected: Tensor,
) -> GrowthPlan:
    """Return a plan with first weights for new layers, tested on a network of the old widths.

    Raises:
        ConfigError: The new layers cannot start without an effect.
    """
    layers = new_layers(narrow, weights)
    first = {name: value.clone() for name, value in narrow.state_dict().items()}

    def keeps(tried: GrowthPlan) -> bool:
        narrow.load_state_dict(first)  # takes less time than a copy of the network
        return _computes(tried.deepened(narrow, weights, example), example, expected)

    def silenced(some: Sequence[str]) -> bool:
        return keeps(replace(wider, silent=tuple(some)))

    silent = fewest(layers, silenced)
    if silent is not None:
        return replace(wider, silent=silent)
    passing = replace(wider, identical=layers)
    if layers and keeps(passing):
        return passing
    raise ConfigError(
        f"its new layers {', '.join(layers)} {_NOT_IDENTITY}" if layers else _NOT_FOLLOWED
    )


def _old_widths(
    child: nn.Module, groups: Sequence[ChannelGroup], old: Mapping[str, torch.Size]
) -> dict[ChannelGroup, int]:
    """Return the channels of each group in a smaller network of the shapes ``old``.

    A group is measured on an axis that it has for itself. Groups of new layers alone, and groups
    that share all of their axes with others, are taken to keep their channels.
    """
    sharing: dict[Axis, int] = {}
    for group in groups:
        for member in group.members:
            sharing[member.axis] = sharing.get(member.axis, 0) + member.positions.size
    shapes, widths = shapes_of(child), {}
    for group in groups:
        widths[group] = group.channels
        for member in group.members:
            for name, dim in held(child, member.axis):
                alone = name in old and sharing[member.axis] == member.positions.size
                if alone and shapes[name][dim] == member.positions.size:
                    widths[group] = old[name][dim] // len(member.positions)
        if widths[group] % group.unit:
            raise ConfigError(
                f"the {widths[group]} channels of {group.name} are no multiple of {group.unit}, "
                "and these stay together in the larger network"
            )
    return widths


def _check_sizes(narrow: nn.Module, old: Mapping[str, torch.Size]) -> None:
    """Raise if a network of the old widths still differs from the smaller one, except in kernels.

    Raises:
        ConfigError: A tensor has another size.
    """
    layers = dict(narrow.named_modules())
    for name, shape in shapes_of(narrow).items():
        if name not in old:
            continue
        kernel = 2 if isinstance(layers.get(name.rpartition(".")[0]), _ConvNd) else len(shape)
        differs = shape[:kernel] != old[name][:kernel]
        if differs or any((a - b) % 2 for a, b in zip(shape, old[name], strict=True)):
            raise ConfigError(
                f"its {name} cannot grow from {tuple(old[name])} to the shape in the larger "
                "network, since the channels cannot be followed or the kernel is not around the old"
            )


def _padded(kernel: Tensor, shape: torch.Size) -> Tensor:
    """Return a kernel with zeros around it."""
    if kernel.shape == shape:
        return kernel
    borders = [(new - old) // 2 for old, new in zip(kernel.shape, shape, strict=True)]
    return functional.pad(kernel, [border for each in reversed(borders) for border in (each, each)])
