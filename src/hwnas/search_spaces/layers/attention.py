"""Transformer blocks for images (ViT, Dosovitskiy et al., ICLR 2021).

Shapes: N images, T tokens, C = width, h heads of d channels each. No tensor has more than four
dimensions, and queries, keys and values are three layers: converters for mobile devices have
problems with one layer whose output is reshaped to five dimensions. The rows of each layer are
whole heads, one after the other, so the first rows of shared weights are the first heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from hwnas.search_spaces.layers.low_rank import projection
from hwnas.search_spaces.layers.piecewise_gelu import GeluKind, gelu_of

__all__ = ["Attention", "FeedForward", "PreNorm"]


class Attention(nn.Module):
    """Multi-head self-attention: (N, T, C) -> (N, T, C).

    Computes softmax(Q K' / sqrt(d)) V (Vaswani et al., NeurIPS 2017, equation 1) as explicit matrix
    products, so that a trace, an export and PyTorch see the same operators.

    Args:
        width: C.
        heads: h.
        head_width: d; the same for any number of heads, as in AutoFormer (Chen et al., ICCV 2021).
        rank: Rank of the layers, as a share of their full rank; dense layers if None.
    """

    def __init__(self, width: int, heads: int, head_width: int, rank: float | None = None) -> None:
        super().__init__()
        inner = heads * head_width
        self.query = projection(width, inner, rank)
        self.key = projection(width, inner, rank)
        self.value = projection(width, inner, rank)
        self.output = projection(inner, width, rank)
        self._split = (heads, head_width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens of x, shape (N, T, C)."""
        query, key, value = (
            layer(x).unflatten(2, self._split).transpose(1, 2)  # (N, h, T, d)
            for layer in (self.query, self.key, self.value)
        )
        scores = (query * self._split[1] ** -0.5) @ key.transpose(2, 3)  # (N, h, T, T)
        mixed = self.weights(scores) @ value
        outputs: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return outputs

    def weights(self, scores: Tensor) -> Tensor:
        """Return the weights of values, (N, h, T, T), from the scores of keys."""
        return scores.softmax(3)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: (N, T, C) -> (N, T, C).

    Args:
        width: C.
        hidden: Channels between the layers.
        rank: Rank of the layers, as a share of their full rank; dense layers if None.
        activation: Kind of the GELU.
    """

    def __init__(
        self, width: int, hidden: int, rank: float | None = None, activation: GeluKind = "gelu"
    ) -> None:
        super().__init__()
        self.expand = projection(width, hidden, rank)
        self.activation = gelu_of(activation)
        self.reduce = projection(hidden, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of x, shape (N, T, C), independently."""
        outputs: Tensor = self.reduce(self.activation(self.expand(x)))
        return outputs


class PreNorm(nn.Module):
    """Residual x + body(norm(x)), layer-normalised over C channels: (N, T, C) -> (N, T, C)."""

    def __init__(self, width: int, body: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Add the body's output to x, shape (N, T, C)."""
        y: Tensor = x + self.body(self.norm(x))
        return y
