"""One set of weights for every network of a space.

The shared weights are the state of the largest network. Any other network owns the corner of each
tensor: the first channels of every channel dimension, the centre of every kernel (once-for-all, Cai
et al., ICLR 2020, section 3; without its kernel transformation matrices, as in BigNAS, Yu et al.,
ECCV 2020). Because the rule reads only shapes and names, it serves every space whose networks nest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.blueprint import blueprint
from hwnas.search_spaces.space import SearchSpace

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
        spatial = tensor.dim() == 4 and dim >= 2
        start = (tensor.shape[dim] - length) // 2 if spatial else 0
        tensor = tensor.narrow(dim, start, length)
    return tensor


class Supernet(nn.Module):
    """All networks of a space in one module.

    ``shared`` is the largest network and owns every parameter. The forward pass runs the active
    architecture on views of these parameters, so gradients and running statistics of
    normalisation flow back into them.

    Args:
        space: The space whose networks are shared.
    """

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.space = space
        self.shared = space.build(space.largest())
        self._tensors = dict(self._named_tensors())
        self._skeletons: OrderedDict[Architecture, nn.Module] = OrderedDict()
        self.activate(space.largest())

    def activate(self, architecture: Architecture) -> None:
        """Make ``forward`` compute this architecture."""
        # Kept out of nn.Module's registry: a skeleton has no weights of its own.
        self.__dict__["active"] = self._skeleton(architecture)
        self.active.train(self.training)

    active: nn.Module
    """The active network without weights; its modules carry the modes of the forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of the active architecture for images of shape (N, *input_shape)."""
        needed = self.active.state_dict(keep_vars=True)
        state = {name: corner(self._tensors[name], value.shape) for name, value in needed.items()}
        outputs: Tensor = functional_call(self.active, state, (images,))
        return outputs

    def extract(self, architecture: Architecture) -> nn.Module:
        """A plain module with copies of its weights; gives the same output as when active."""
        network = self.space.build(architecture)
        tensors = self.shared.state_dict()
        needed = network.state_dict()
        network.load_state_dict({n: corner(tensors[n], value.shape) for n, value in needed.items()})
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
        self._tensors = dict(self._named_tensors())
        return self

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.shared.named_parameters()
        yield from self.shared.named_buffers()

    def _skeleton(self, architecture: Architecture) -> nn.Module:
        if architecture in self._skeletons:
            self._skeletons.move_to_end(architecture)
            return self._skeletons[architecture]
        with blueprint():
            skeleton = self.space.build(architecture)
        missing = set(skeleton.state_dict()) - set(self._tensors)
        if missing:
            raise ConfigError(
                f"{self.space.name}: the largest network has no {sorted(missing)[0]!r}; name the "
                "parts of every network as the largest one names them"
            )
        self._skeletons[architecture] = skeleton
        if len(self._skeletons) > _SKELETONS_KEPT:
            self._skeletons.popitem(last=False)
        return skeleton


def batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch normalisations that a forward pass of ``network`` goes through."""
    root = network.active if isinstance(network, Supernet) else network
    return [m for m in root.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
