"""One set of weights for every network of a space.

The shared weights are the state of the largest network. Any other network owns the corner of each
tensor: the first channels of every channel dimension, the centre of every kernel (once-for-all, Cai
et al., ICLR 2020, section 3; without its kernel transformation matrices, as in BigNAS, Yu et al.,
ECCV 2020). Because the rule reads only shapes and names, it serves every space whose networks nest.
A space whose networks use other pieces of a tensor says so (`SearchSpace.segments`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.blueprint import blueprint
from hwnas.search_spaces.space import SearchSpace, Segments

__all__ = ["Supernet", "batch_norms", "corner"]

_SKELETONS_KEPT = 64


def corner(tensor: Tensor, shape: torch.Size) -> Tensor:
    """The part of a shared tensor that a smaller network uses, as a view.

    Args:
        tensor: A shared weight or buffer; of a convolution (out, in / groups, height, width).
        shape: Shape of the part; nowhere larger than ``tensor``.

    Raises:
        ConfigError: The shapes do not nest.
    """
    if tensor.shape == shape:
        return tensor
    if tensor.dim() != len(shape) or any(s > t for s, t in zip(shape, tensor.shape, strict=True)):
        raise ConfigError(
            f"weights of shape {tuple(shape)} are no part of the shared {tuple(tensor.shape)}; "
            "the largest network of a space must be the largest in every tensor"
        )
    for dim, length in enumerate(shape):
        surplus = tensor.shape[dim] - length
        if surplus:
            spatial = tensor.dim() == 4 and dim >= 2
            tensor = tensor.narrow(dim, surplus // 2 if spatial else 0, length)
    return tensor


@dataclass(frozen=True)
class _Slot:
    """A place in a skeleton for a part of a shared tensor.

    Attributes:
        holder: A module's own table of parameters or buffers.
        key: In that table.
        name: Of the shared tensor.
        shape: Of the part.
        segments: Which pieces the part is made of, where it is not the corner.
    """

    holder: dict[str, Any]
    key: str
    name: str
    shape: torch.Size
    segments: Segments = ()

    def fill(self, shared: Tensor) -> None:
        """Put the part of a shared tensor into its place."""
        self.holder[self.key] = corner(_pieces(shared, self.segments), self.shape)

    def write_back(self, shared: Tensor) -> None:
        """Bring back what a forward pass wrote into a buffer that is no view of the shared one."""
        (dim, pieces) = self.segments[0]
        part, at = self.holder[self.key], 0
        for start, length in pieces:
            shared.narrow(dim, start, length).copy_(part.narrow(dim, at, length))
            at += length


def _pieces(tensor: Tensor, segments: Segments) -> Tensor:
    """The pieces of a tensor, joined."""
    for dim, pieces in segments:
        tensor = torch.cat([tensor.narrow(dim, start, n) for start, n in pieces], dim)
    return tensor


class Supernet(nn.Module):
    """All networks of a space in one module.

    ``shared`` is the largest network and owns every parameter. The forward pass runs the active
    architecture, a module without weights of its own, on views of these parameters, so gradients
    and running statistics of normalisation flow back into them.

    Args:
        space: The space whose networks are shared.
    """

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.space = space
        self.shared = space.build(space.largest())
        self._tensors = self._shared_tensors()
        self._buffer_names = {name for name, _ in self.shared.named_buffers()}
        self._skeletons: OrderedDict[Architecture, tuple[nn.Module, list[_Slot]]] = OrderedDict()
        self.activate(space.largest())

    def activate(self, architecture: Architecture) -> None:
        """Make ``forward`` compute this architecture."""
        # Kept out of nn.Module's registry: a skeleton has no weights of its own.
        self.__dict__["active"], self._slots = self._skeleton(architecture)
        self._written = [s for s in self._slots if s.segments and s.name in self._buffer_names]
        self.active.train(self.training)

    active: nn.Module
    """The active network without weights; its modules carry the modes of the forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of the active architecture for images of shape (N, *input_shape)."""
        for slot in self._slots:
            slot.fill(self._tensors[slot.name])
        outputs: Tensor = self.active(images)
        with torch.no_grad():
            for slot in self._written:
                slot.write_back(self._tensors[slot.name])
        return outputs

    def extract(self, architecture: Architecture) -> nn.Module:
        """A plain module with copies of its weights; gives the same output as when active."""
        network = self.space.build(architecture)
        tensors = self.shared.state_dict()
        needed = network.state_dict()
        segments = self.space.segments(architecture)
        network.load_state_dict(
            {
                n: corner(_pieces(tensors[n], segments.get(n, ())), value.shape)
                for n, value in needed.items()
            }
        )
        return network.train(self.training)

    def train(self, mode: bool = True) -> Supernet:
        """Set training or evaluation mode, of the active network too."""
        super().train(mode)
        if "active" in self.__dict__:
            self.active.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Supernet:
        """Follow a move to another device or type, which replaces buffers."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._tensors = self._shared_tensors()
        return self

    def _shared_tensors(self) -> dict[str, Tensor]:
        return {slot.name: slot.holder[slot.key] for slot in _slots(self.shared)}

    def _skeleton(self, architecture: Architecture) -> tuple[nn.Module, list[_Slot]]:
        if architecture in self._skeletons:
            self._skeletons.move_to_end(architecture)
            return self._skeletons[architecture]
        with blueprint():
            skeleton = self.space.build(architecture)
        segments = self.space.segments(architecture)
        slots = [replace(s, segments=segments.get(s.name, ())) for s in _slots(skeleton)]
        missing = {slot.name for slot in slots} - set(self._tensors)
        if missing:
            raise ConfigError(
                f"{self.space.name}: the largest network has no {sorted(missing)[0]!r}; name the "
                "parts of every network as the largest one names them"
            )
        self._skeletons[architecture] = skeleton, slots
        if len(self._skeletons) > _SKELETONS_KEPT:
            self._skeletons.popitem(last=False)
        return skeleton, slots


def _slots(skeleton: nn.Module) -> Iterator[_Slot]:
    """Where a skeleton wants its weights and buffers."""
    for prefix, module in skeleton.named_modules():
        for holder in (module._parameters, module._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    yield _Slot(holder, key, name, tensor.shape)


def batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch normalisations that a forward pass of ``network`` goes through."""
    root = network.active if isinstance(network, Supernet) else network
    return [m for m in root.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
