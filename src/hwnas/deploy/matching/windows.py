"""Extraction of convolution windows by PyTorch (im2col), for operators that take pixels only."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from hwnas.deploy.onnx.module import Node

__all__ = ["Windows", "windows_of"]


@dataclass(frozen=True)
class Windows:
    """Windows that PyTorch gathers from a map, each as one pixel of an operator's input.

    Attributes:
        size: Side of a square window, in pixels.
        stride: Distance between neighbouring windows, in pixels.
        padding: Padding on each side of the map, in pixels.
        value: Value of the padding.
    """

    size: int
    stride: int
    padding: int = 0
    value: int = 0

    def of(self, x: Tensor) -> Tensor:
        """Return the windows (N, H', W', k k C) of a map (N, H, W, C).

        The values of a window are ordered by row, then column, then channel.
        """
        if self.padding:
            x = functional.pad(x, (0, 0, *(self.padding,) * 4), value=self.value)
        x = x.unfold(1, self.size, self.stride).unfold(2, self.size, self.stride)
        return x.permute(0, 1, 2, 4, 5, 3).flatten(3)


def windows_of(conv: Node, weight: Tensor) -> Windows | None:
    """Return the windows of a convolution.

    The result is None if windows, strides or padding differ between the sides, if the convolution
    is dilated, or if it pads automatically.
    """
    attributes, (height, width) = conv.attributes, weight.shape[2:]
    pads, strides = set(attributes.get("pads", [0])), set(attributes.get("strides", [1]))
    if height != width or len(pads) > 1 or len(strides) > 1:
        return None
    if set(attributes.get("dilations", [1])) != {1}:
        return None
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    return Windows(height, strides.pop(), pads.pop())
