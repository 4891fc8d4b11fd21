"""Drafting the steps of a network by its layers, with their sizes and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hwnas.search_spaces.steps import Step
from hwnas.search_spaces.workload import OperatorKind

__all__ = ["Sketch"]

_BYTES = 4  # of one number; tables are of float32 networks unless a device says otherwise


@dataclass
class Sketch:
    """A feature map that layers are applied to, one after the other.

    Attributes:
        channels: Of the feature map.
        side: Its height, and its width too where ``width`` is 0.
        repeat: How often the sketched part occurs in a network.
        dead: Whether a compiler may drop the part.
        steps: What was applied so far, counted; batch normalisations as steps of their own.
        width: Of the feature map, where it is not square.
    """

    channels: int
    side: int
    repeat: int = 1
    dead: bool = False
    steps: Counter[Step] = field(default_factory=Counter)
    width: int = 0

    @property
    def pixels(self) -> int:
        """Of the feature map."""
        return self.side * (self.width or self.side)

    @property
    def _bytes(self) -> int:
        return _BYTES * self.channels * self.pixels

    def conv(
        self,
        channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
        norm: bool = True,
    ) -> Sketch:
        """A convolution with "same" padding, perhaps batch normalisation and an activation."""
        read, per_output = self._bytes, kernel_size**2 * self.channels // groups
        kind: OperatorKind = "conv"
        if groups == self.channels == channels:
            kind = "depthwise"
        elif groups == 1 and kernel_size == 1:
            kind = "pointwise"
        self.channels = channels
        self._shrink(stride)
        macs = per_output * channels * self.pixels
        weights = _BYTES * per_output * channels
        self._add(Step(kind, macs, read, self._bytes, weights, kernel_size, stride, self.dead))
        if norm:
            self.norm()
        return self.simple("activation") if activation else self

    def norm(self) -> Sketch:
        """Batch normalisation."""
        weights = 16 * self.channels
        self._add(Step("norm", 0, self._bytes, self._bytes, weights, dead=self.dead))
        return self

    def simple(self, kind: OperatorKind, inputs: int = 1, stride: int = 1) -> Sketch:
        """A step without multiply-accumulates that keeps the channels."""
        read = inputs * self._bytes
        self._shrink(stride)
        self._add(Step(kind, 0, read, self._bytes, dead=self.dead))
        return self

    def gate(self, squeezed: int, biased: bool = False) -> Sketch:
        """Squeeze and excite: pool, two small pointwise convolutions, scale the channels."""
        vector, row = _BYTES * self.channels, _BYTES * squeezed
        product = self.channels * squeezed
        down, up = (_BYTES * product + biased * biases for biases in (row, vector))
        self._add(Step("pool", 0, self._bytes, vector, dead=self.dead))
        self._add(Step("pointwise", product, vector, row, down, 1, 1, self.dead))
        self._add(Step("activation", 0, row, row, dead=self.dead))
        self._add(Step("pointwise", product, row, vector, up, 1, 1, self.dead))
        self._add(Step("activation", 0, vector, vector, dead=self.dead))
        scaled = self.channels * self.pixels
        self._add(Step("elementwise", scaled, self._bytes + vector, self._bytes, dead=self.dead))
        return self

    def shuffle(self) -> Sketch:
        """Channels in another order."""
        return self.view().view().simple("elementwise").view()

    def linear(self, outputs: int, biased: bool = True) -> Sketch:
        """A linear layer on a feature map of one pixel."""
        macs = self.channels * self.pixels * outputs
        read = self._bytes
        self.channels, self.side, self.width = outputs, 1, 0
        self._add(Step("linear", macs, read, self._bytes, _BYTES * (macs + biased * outputs)))
        return self

    def pool(self) -> Sketch:
        """The mean over the whole feature map."""
        read = self._bytes
        self.side, self.width = 1, 0
        self._add(Step("pool", 0, read, self._bytes, dead=self.dead))
        return self

    def view(self) -> Sketch:
        """Another look at the same numbers; it moves nothing."""
        self._add(Step("view", dead=self.dead))
        return self

    def _shrink(self, stride: int) -> None:
        self.side, self.width = -(-self.side // stride), -(-self.width // stride)

    def _add(self, step: Step) -> None:
        self.steps[step] += self.repeat
