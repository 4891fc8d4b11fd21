"""Modules of a `DecoderSpace`: embedding, causal blocks, head.

Shapes: N windows of T tokens, C channels.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from hwnas.search_spaces.decoder.config import DecoderConfig
from hwnas.search_spaces.layers import Attention, FeedForward, PreNorm

__all__ = ["Decoder", "block", "causal_attention", "embedding", "head", "perceptron"]

_SPREAD = 0.02  # standard deviation of initial embeddings, as in GPT-2
_NEVER = -1e4  # a score whose exponential is 0, in half precision, too


class CausalAttention(Attention):
    """Multi-head attention of each token to itself and earlier ones: (N, T, C) -> (N, T, C)."""

    def weights(self, scores: Tensor) -> Tensor:
        """Return the weights of values, which are 0 for later tokens."""
        later = torch.full_like(scores[0, 0], _NEVER).triu(1)
        weights: Tensor = (scores + later).softmax(3)
        return weights


class TokenEmbedding(nn.Module):
    """Embedding of tokens and their positions: (N, 1, 1, T) -> (N, T, C).

    Tokens are whole numbers in float32, as the preprocessing of bytes gives them. Other numbers are
    rounded to one that exists.

    Args:
        tokens: Number of different tokens.
        length: T.
        width: C.
    """

    def __init__(self, tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.empty(1, length, width))
        for weight in (self.tokens.weight, self.position):
            nn.init.normal_(weight, std=_SPREAD)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embedded tokens of inputs (N, 1, 1, T)."""
        numbers = inputs.flatten(1).round().clamp(0, self.tokens.num_embeddings - 1)
        embedded: Tensor = self.tokens(numbers.long())
        return embedded + self.position


class NextToken(nn.Module):
    """Logits of the next token at each place: (N, T, C) -> (N, outputs, 1, T).

    Args:
        width: C.
        outputs: Number of different tokens that may follow.
        dropout: Dropout probability before the linear layer.
    """

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.outputs = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits after tokens x, shape (N, T, C)."""
        logits: Tensor = self.outputs(self.dropout(self.norm(x)))
        return logits.transpose(1, 2).unsqueeze(2).contiguous()


class Decoder(nn.Sequential):
    """Network of a `DecoderSpace`: (N, 1, 1, T) -> (N, outputs, 1, T)."""

    def __init__(self, embedding: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__(OrderedDict(embedding=embedding, blocks=nn.Sequential(*blocks), head=head))


def embedding(config: DecoderConfig, width: int) -> TokenEmbedding:
    """Return the embedding of tokens."""
    return TokenEmbedding(config.tokens, config.resolution[0], width)


def causal_attention(config: DecoderConfig, width: int, heads: int) -> PreNorm:
    """Return the attention of a block."""
    return PreNorm(width, CausalAttention(width, heads, config.head_width))


def perceptron(config: DecoderConfig, width: int, mlp_ratio: float) -> PreNorm:
    """Return the perceptron of a block."""
    return PreNorm(width, FeedForward(width, config.hidden(width, mlp_ratio)))


def block(config: DecoderConfig, width: int, heads: int, mlp_ratio: float) -> nn.Sequential:
    """Return a block: (N, T, C) -> (N, T, C)."""
    parts = OrderedDict[str, nn.Module](
        attention=causal_attention(config, width, heads),
        perceptron=perceptron(config, width, mlp_ratio),
    )
    return nn.Sequential(parts)


def head(config: DecoderConfig, width: int) -> NextToken:
    """Return the head, which gives the logits of the next token."""
    return NextToken(width, config.outputs, config.dropout)
