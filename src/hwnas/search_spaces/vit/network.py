"""One vision transformer: embedding, blocks, head."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers import PatchEmbedding, PreNorm
from hwnas.search_spaces.vit.config import VitConfig

__all__ = ["TokenHead", "VisionTransformer", "block", "embedding"]


class TokenHead(nn.Module):
    """The mean of normalised tokens, then a linear layer: (N, T, C) -> (N, outputs).

    Args:
        width: C.
        outputs: Length of the output vector.
        dropout: Probability before the linear layer.
    """

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.outputs = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of tokens x, shape (N, T, C)."""
        outputs: Tensor = self.outputs(self.dropout(self.norm(x).mean(1)))
        return outputs


class VisionTransformer(nn.Sequential):
    """One network of a `VitSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, embedding: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__(OrderedDict(embedding=embedding, blocks=nn.Sequential(*blocks), head=head))


def embedding(config: VitConfig, width: int, patch: int, side: int) -> PatchEmbedding:
    """From images to tokens, at one of the options of each."""
    grid = side // patch if config.position == "table" else None
    return PatchEmbedding(config.in_channels, width, patch, config.patch_size[0], grid)


def block(width: int, attention: nn.Module, feed_forward: nn.Module) -> nn.Sequential:
    """A block: tokens mix, then each changes by itself; (N, T, C) -> (N, T, C)."""
    return nn.Sequential(
        OrderedDict(attention=PreNorm(width, attention), feed_forward=PreNorm(width, feed_forward))
    )
