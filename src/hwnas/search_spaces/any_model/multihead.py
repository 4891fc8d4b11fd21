"""Multi-head attention with the function of PyTorch's, in a form that can lose heads.

`torch.nn.MultiheadAttention` requires heads that fill the width of its input. The same computation
with separate linear layers for queries, keys and values does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["HeadAttention", "with_separate_heads"]


class HeadAttention(nn.Module):
    """Attention that computes what a `torch.nn.MultiheadAttention` computes, with the same call.

    Args:
        attention: Attention whose weights are copied. It has to be one that `with_separate_heads`
            replaces.
    """

    in_proj_bias = None  # keeps PyTorch's encoder layers off their fast path

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.batch_first, self.dropout = attention.batch_first, attention.dropout
        weights = attention.in_proj_weight.detach().chunk(3)
        bias = attention.in_proj_bias
        biases = (None, None, None) if bias is None else bias.detach().chunk(3)
        self.query, self.key, self.value = (
            _linear(weight, each) for weight, each in zip(weights, biases, strict=True)
        )
        out = attention.out_proj
        self.out_proj = _linear(out.weight.detach(), None if out.bias is None else out.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See `torch.nn.MultiheadAttention.forward`; inputs are batches."""
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            mixed = F.dropout(weights, dropout) @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _mask(
        self, attention: Tensor | None, padding: Tensor | None, like: Tensor
    ) -> Tensor | None:
        """Return both masks as one additive mask; None if there is no mask.

        The shape broadcasts to (N or 1, heads or 1, queries or 1, keys).
        """
        mask = None
        if attention is not None:
            mask = _added(attention, like)
            if mask.dim() == 3:
                mask = mask.reshape(-1, self.num_heads, *mask.shape[1:])
        if padding is not None:
            of_keys = _added(padding, like)[:, None, None]
            mask = of_keys if mask is None else mask + of_keys
        return mask


def with_separate_heads(network: nn.Module) -> nn.Module:
    """Replace, in place, each `torch.nn.MultiheadAttention` that allows it; return the network.

    Attentions that append keys of their own, or whose keys and values have their own widths, are
    left unchanged.
    """
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.MultiheadAttention and _replaceable(child):
                setattr(parent, name, HeadAttention(child).train(child.training))
    return network


def _replaceable(attention: nn.MultiheadAttention) -> bool:
    extended = attention.bias_k is not None or attention.add_zero_attn
    return attention._qkv_same_embed_dim and not extended


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as a term to add to scores: boolean masks become -inf where they are true."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
