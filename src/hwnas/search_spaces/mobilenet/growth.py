"""Growth of networks: a larger network starts with the function of a smaller one, and trains on.

Function-preserving transformations: Net2WiderNet and Net2DeeperNet (Chen, Goodfellow and Shlens,
ICLR 2016), used as moves of a search (EAS, Cai et al., AAAI 2018). In a `MobileNetSpace` these
choices can grow: expansion ratios, where the block already has an expansion layer; depths; kernel
sizes. The resolution changes the input of a network and the width the channels between blocks, so
these two stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers import InvertedBottleneck, hidden_channels, scaled_channels
from hwnas.search_spaces.mobilenet.network import MobileNet
from hwnas.search_spaces.mobilenet.space import MobileNetSpace
from hwnas.search_spaces.space.architecture import Architecture

__all__ = ["can_grow", "grow", "moves"]

_LEAST_SHARE = 0.5  # least share of a replica, before shares are normalised to sum to 1


def moves(space: MobileNetSpace, parent: Architecture) -> Mapping[str, Architecture]:
    """Return the possible next larger networks, each by the choice that takes its next option.

    A block that a larger depth adds has the first options.
    """
    values = space.check(parent).as_dict()
    first = {choice.name: choice.options[0] for choice in space.choices}
    found = {}
    for choice in space.choices:
        if choice.name not in values or values[choice.name] == choice.options[-1]:
            continue
        larger = choice.options[choice.index(values[choice.name]) + 1]
        child = space.architecture({**first, **values, choice.name: larger})
        if can_grow(space, parent, child):
            found[choice.name] = child
    return found


def can_grow(space: MobileNetSpace, parent: Architecture, child: Architecture) -> bool:
    """Return whether the child is the parent or can compute the parent's function; see `grow`."""
    if space.config.dense_head is not None or any(s.operators for s in space.config.stages):
        return child == parent  # a different head or operator computes a different function
    if space.input_shape(parent) != space.input_shape(child):
        return False
    if _width(space, parent) != _width(space, child):
        return False
    for (inputs, old), (_, new) in zip(_stages(space, parent), _stages(space, child), strict=True):
        if len(new) < len(old):
            return False
        for position, (before, after) in enumerate(zip(old, new, strict=False)):
            channels = inputs[min(position, 1)]
            hidden = [hidden_channels(channels, ratio) for _, ratio in (before, after)]
            if after[0] < before[0] or hidden[1] < hidden[0]:
                return False
            # A new expansion layer with an activation after it cannot be the identity.
            if hidden[0] != hidden[1] and channels in hidden:
                return False
    return True


def grow(
    space: MobileNetSpace,
    parent: Architecture,
    weights: Mapping[str, Tensor],
    child: Architecture,
    seed: int,
) -> MobileNet:
    """Return a larger network that computes the same outputs, up to rounding.

    - A larger expansion: hidden channels, and those inside a squeeze-excite gate, are replicated.
      The layers that read them divide their weights among the replicas, unevenly and at random, so
      that replicas become different in training (Net2Net adds noise for this).
    - A larger kernel has zeros around the old one.
    - An additional block is residual, and the scale of its last normalisation is 0 (Goyal et al.,
      "Accurate, Large Minibatch SGD", 2017, section 5.1), so it adds nothing at first.

    All of this also holds for batch statistics, so training starts from the same loss.

    Args:
        space: Space of both networks.
        parent: Architecture of the weights.
        weights: State dict of the parent.
        child: Architecture to build.
        seed: Seed of the shares and of the weights of new blocks.

    Raises:
        ConfigError: The parent cannot grow into the child.
    """
    if not can_grow(space, parent, child):
        raise ConfigError(
            f"network {child.id} cannot start from {parent.id}, which grows only into deeper or "
            "wider networks; train it from the start"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _built(space, child)
        if child == parent:
            network.load_state_dict(weights)
            return network
        state = dict(network.state_dict())
        for name, value in weights.items():
            if not name.startswith("stages."):
                state[name] = value
        old = _built(space, parent)
        old.load_state_dict(weights)
        for prefix, block, before in _blocks(network, old):
            grown = _added(block) if before is None else _widened(before, block)
            state |= {f"{prefix}.{name}": value for name, value in grown.items()}
    network.load_state_dict(state)
    return network


def _built(space: MobileNetSpace, architecture: Architecture) -> MobileNet:
    network = space.build(architecture)
    assert isinstance(network, MobileNet)
    return network


def _width(space: MobileNetSpace, architecture: Architecture) -> float:
    width = architecture.as_dict().get("width", space.config.width[0])
    assert not isinstance(width, str)
    return width


def _stages(
    space: MobileNetSpace, architecture: Architecture
) -> Iterator[tuple[tuple[int, int], tuple[tuple[int, float], ...]]]:
    """Yield input channels of each stage's first and other blocks, and its kernels and ratios."""
    width = _width(space, architecture)
    channels = scaled_channels(space.config.stem_channels, width)
    for stage in space.outline(architecture):
        yield (channels, stage.channels), stage.blocks
        channels = stage.channels


def _blocks(
    network: MobileNet, old: MobileNet
) -> Iterator[tuple[str, InvertedBottleneck, InvertedBottleneck | None]]:
    """Yield each block of a network, with its name and the old network's block there, if any."""
    for s, (stage, before) in enumerate(zip(network.stages, old.stages, strict=True)):
        assert isinstance(stage, nn.Sequential)
        assert isinstance(before, nn.Sequential)
        for b, block in enumerate(stage):
            assert isinstance(block, InvertedBottleneck)
            in_place = before[b] if b < len(before) else None
            assert in_place is None or isinstance(in_place, InvertedBottleneck)
            yield f"stages.{s}.{b}", block, in_place


def _added(block: InvertedBottleneck) -> dict[str, Tensor]:
    """Return the state of a new block that computes the identity."""
    assert block.residual
    state = dict(block.state_dict())
    for name in ("weight", "bias"):
        state[f"layers.project.norm.{name}"] = torch.zeros_like(
            state[f"layers.project.norm.{name}"]
        )
    return state


@dataclass(frozen=True)
class _Replicas:
    """Replication of channels to a larger number.

    Attributes:
        origin: Index of the old channel that each new channel repeats, (new,).
        share: Share of each new channel in the weights that read the old one, (new,).
    """

    origin: Tensor
    share: Tensor

    @classmethod
    def of(cls, old: int, new: int) -> _Replicas:
        """Return the old channels, followed by random ones of them."""
        extra = [torch.randperm(old) for _ in range(-(-(new - old) // old))]
        origin = torch.cat([torch.arange(old), *extra])[:new]
        drawn = _LEAST_SHARE + torch.rand(new, dtype=torch.float64)
        total = torch.zeros(old, dtype=torch.float64).index_add_(0, origin, drawn)
        return cls(origin, drawn / total[origin])

    def rows(self, tensor: Tensor) -> Tensor:
        """Repeat the weights that produce the channels: (old, ...) -> (new, ...)."""
        return tensor[self.origin]

    def columns(self, tensor: Tensor) -> Tensor:
        """Divide the weights that read the channels: (..., old, 1, 1) -> (..., new, 1, 1)."""
        shares = self.share[:, None, None]
        return (tensor[:, self.origin] * shares).to(tensor.dtype)


def _widened(old: InvertedBottleneck, new: InvertedBottleneck) -> dict[str, Tensor]:
    """Return the state of a block with more hidden channels or a larger kernel."""
    before, after = dict(old.state_dict()), new.state_dict()
    kernel = "layers.depthwise.conv.weight"
    border = (after[kernel].shape[3] - before[kernel].shape[3]) // 2
    before[kernel] = functional.pad(before[kernel], (border,) * 4)
    hidden = _Replicas.of(before[kernel].shape[0], after[kernel].shape[0])
    squeezed = None
    if "layers.squeeze_excite.reduce.bias" in before:
        gate = "layers.squeeze_excite.reduce.bias"
        squeezed = _Replicas.of(len(before[gate]), len(after[gate]))
    return {name: _replicated(name, value, hidden, squeezed) for name, value in before.items()}


def _replicated(name: str, value: Tensor, hidden: _Replicas, squeezed: _Replicas | None) -> Tensor:
    """Return a tensor of a block for its replicated channels."""
    _, layer, part, *_ = name.split(".")
    if layer == "squeeze_excite":
        assert squeezed is not None
        made, read = (squeezed, hidden) if part == "reduce" else (hidden, squeezed)
        value = made.rows(value)
        return read.columns(value) if value.dim() == 4 else value
    if layer == "project":
        return hidden.columns(value) if part == "conv" else value
    return hidden.rows(value) if value.dim() else value
