"""Operator counts of a network, drafted from the sizes of its layers without building modules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature
from hwnas.search_spaces.cost_model.workload import OperatorKind

__all__ = ["OperatorCounter"]

_BYTES = 4  # of one element; tables are of float32 networks unless a device states otherwise


@dataclass
class OperatorCounter:
    """Feature map that layers are applied to, one after the other, while operators are counted.

    Attributes:
        channels: Channels of the feature map.
        side: Height of the feature map, and its width too if ``width`` is 0.
        width: Width of the feature map, or 0.
        repeat: Number of times that the sketched part occurs in a network.
        dead: Whether a compiler may remove the part.
        steps: Counts of the operators applied so far; batch normalisations are separate operators.
    """

    channels: int
    side: int
    width: int = 0
    repeat: int = 1
    dead: bool = False
    steps: Counter[OperatorSignature] = field(default_factory=Counter)

    @property
    def pixels(self) -> int:
        """Number of pixels of the feature map."""
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
        biased: bool = False,
    ) -> OperatorCounter:
        """Apply a "same"-padded convolution, and optionally batch normalisation and activation."""
        read, per_output = self._bytes, kernel_size**2 * self.channels // groups
        kind: OperatorKind = "conv"
        if groups == self.channels == channels:
            kind = "depthwise"
        elif groups == 1 and kernel_size == 1:
            kind = "pointwise"
        self.channels = channels
        self._shrink(stride)
        macs = per_output * channels * self.pixels
        weights = _BYTES * (per_output * channels + biased * channels)
        self._add(
            OperatorSignature(
                kind, macs, read, self._bytes, weights, kernel_size, stride, self.dead
            )
        )
        if norm:
            self.norm()
        return self.simple("activation") if activation else self

    def traced(self, steps: Counter[OperatorSignature], stride: int) -> OperatorCounter:
        """Apply a part whose operators were traced, which keeps the number of channels."""
        self._shrink(stride)
        for step, count in steps.items():
            self.steps[step] += count * self.repeat
        return self

    def norm(self) -> OperatorCounter:
        """Apply batch normalisation."""
        weights = 16 * self.channels
        self._add(OperatorSignature("norm", 0, self._bytes, self._bytes, weights, dead=self.dead))
        return self

    def simple(self, kind: OperatorKind, inputs: int = 1, stride: int = 1) -> OperatorCounter:
        """Apply an operator without multiply-accumulates that keeps the number of channels."""
        read = inputs * self._bytes
        self._shrink(stride)
        self._add(OperatorSignature(kind, 0, read, self._bytes, dead=self.dead))
        return self

    def enlarge(self, side: int, width: int) -> OperatorCounter:
        """Interpolate the feature map to this height and width."""
        read = self._bytes
        self.side, self.width = side, width
        self._add(OperatorSignature("pool", 0, read, self._bytes, dead=self.dead))
        return self

    def pixel_shuffle(self, factor: int) -> OperatorCounter:
        """Move groups of ``factor ** 2`` channels to pixels of a larger feature map."""
        read = self._bytes
        self.channels //= factor**2
        self.side, self.width = self.side * factor, (self.width or self.side) * factor
        self._add(OperatorSignature("elementwise", 0, read, self._bytes, dead=self.dead))
        return self

    def gate(self, squeezed: int, biased: bool = False) -> OperatorCounter:
        """Apply squeeze-and-excite.

        It pools, applies two small pointwise convolutions, and scales the channels.
        """
        vector, row = _BYTES * self.channels, _BYTES * squeezed
        product = self.channels * squeezed
        down, up = (_BYTES * product + biased * biases for biases in (row, vector))
        self._add(OperatorSignature("pool", 0, self._bytes, vector, dead=self.dead))
        self._add(OperatorSignature("pointwise", product, vector, row, down, 1, 1, self.dead))
        self._add(OperatorSignature("activation", 0, row, row, dead=self.dead))
        self._add(OperatorSignature("pointwise", product, row, vector, up, 1, 1, self.dead))
        self._add(OperatorSignature("activation", 0, vector, vector, dead=self.dead))
        scaled = self.channels * self.pixels
        self._add(
            OperatorSignature(
                "elementwise", scaled, self._bytes + vector, self._bytes, dead=self.dead
            )
        )
        return self

    def shuffle(self) -> OperatorCounter:
        """Apply a channel shuffle."""
        return self.view().view().simple("elementwise").view()

    def linear(self, outputs: int, biased: bool = True) -> OperatorCounter:
        """Apply a linear layer to a feature map of one pixel."""
        macs = self.channels * self.pixels * outputs
        read = self._bytes
        self.channels, self.side, self.width = outputs, 1, 0
        self._add(
            OperatorSignature("linear", macs, read, self._bytes, _BYTES * (macs + biased * outputs))
        )
        return self

    def pool(self) -> OperatorCounter:
        """Apply global average pooling."""
        read = self._bytes
        self.side, self.width = 1, 0
        self._add(OperatorSignature("pool", 0, read, self._bytes, dead=self.dead))
        return self

    def view(self) -> OperatorCounter:
        """Apply a view, which moves no data."""
        self._add(OperatorSignature("view", dead=self.dead))
        return self

    def _shrink(self, stride: int) -> None:
        self.side, self.width = -(-self.side // stride), -(-self.width // stride)

    def _add(self, step: OperatorSignature) -> None:
        self.steps[step] += self.repeat
