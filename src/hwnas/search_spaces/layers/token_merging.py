"""Merging of similar tokens, for transformers that become faster from block to block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["TokenMerging", "tokens_after"]

_TINY = 1e-12  # of a squared norm


class TokenMerging(nn.Module):
    """Mean of the most similar tokens: (N, T, C) -> (N, T - r, C).

    The bipartite soft matching of ToMe (Bolya et al., "Token Merging: Your ViT But Faster", ICLR
    2023, section 3): every other token is matched with the token among the rest that is most
    similar to it, by cosine; the r best matches are merged. Similarity is that of the tokens, not
    of the keys of their attention, and merged tokens count as one in later attention, since the
    networks are trained with merging.

    Args:
        share: Share of the tokens that are merged into others, in (0, 0.5]; r = `tokens_after`
            subtracted from T.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def extra_repr(self) -> str:
        """Return the share of merged tokens."""
        return f"share={self.share}"

    def forward(self, x: Tensor) -> Tensor:
        """Return fewer tokens than x, shape (N, T, C); those merged into come last."""
        tokens, channels = x.shape[1:]
        merged = tokens - tokens_after(tokens, self.share)
        if not merged:
            return x
        directions = x * ((x * x).sum(2, keepdim=True) + _TINY).rsqrt()
        sources, targets = x[:, ::2], x[:, 1::2]
        similar = directions[:, ::2] @ directions[:, 1::2].transpose(1, 2)
        best = similar.amax(2, keepdim=True)  # (N, sources, 1)
        matches = (similar >= best).to(x.dtype)
        order = best.topk(best.shape[1], 1).indices
        moved, kept = order[:, :merged], order[:, merged:]
        matches = matches.gather(1, moved.expand(-1, -1, matches.shape[2])).transpose(1, 2)
        sums = targets + matches @ sources.gather(1, moved.expand(-1, -1, channels))
        means = sums / (matches.sum(2, keepdim=True) + 1)
        left = sources.gather(1, kept.expand(-1, -1, channels))
        return torch.cat([left, means], 1)


def tokens_after(tokens: int, share: float) -> int:
    """Return the number of tokens that remain of some, at least half of them."""
    return tokens - min(tokens // 2, round(tokens * share))
