"""Windows of a map for operators that only take pixels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from hwnas.deploy.onnx_module import Node

__all__ = ["Windows", "windows_of"]


@dataclass(frozen=True)
class Windows:
    """What PyTorch gathers for an operator that only takes pixels: each window as one of them.

    Attributes:
        size: Of a window, along both sides.
        stride: From one to the next.
        padding: On all sides of the map.
        value: What lies there.
    """

    size: int
    stride: int
    padding: int = 0
    value: int = 0

    def of(self, x: Tensor) -> Tensor:
        """(N, H', W', k k C) of a map (N, H, W, C): rows of a window first, channels last."""
        if self.padding:
            x = functional.pad(x, (0, 0, *(self.padding,) * 4), value=self.value)
        x = x.unfold(1, self.size, self.stride).unfold(2, self.size, self.stride)
        return x.permute(0, 1, 2, 4, 5, 3).flatten(3)


def windows_of(conv: Node, weight: Tensor) -> Windows | None:
    """Those of a convolution; None where they are not square and alike along both sides."""
    attributes, (height, width) = conv.attributes, weight.shape[2:]
    pads, strides = set(attributes.get("pads", [0])), set(attributes.get("strides", [1]))
    if height != width or len(pads) > 1 or len(strides) > 1:
        return None
    if set(attributes.get("dilations", [1])) != {1}:
        return None
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    return Windows(height, strides.pop(), pads.pop())
