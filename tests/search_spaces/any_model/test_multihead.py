"""Attention from which heads can be removed, compared with PyTorch's attention."""

import pytest
import torch
from torch import Tensor, nn

from hwnas.search_spaces.any_model.multihead import HeadAttention, with_separate_heads

WIDTH, HEADS, TOKENS, IMAGES = 12, 3, 5, 2


def made(**options: bool) -> tuple[nn.MultiheadAttention, HeadAttention]:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    holder = nn.ModuleList([attention])
    (found,) = with_separate_heads(holder).children()
    assert isinstance(found, HeadAttention)
    return attention, found.eval()


def masks() -> list[dict[str, Tensor]]:
    causal = torch.ones(TOKENS, TOKENS).triu(1).bool()
    padding = torch.zeros(IMAGES, TOKENS).bool()
    padding[1, 3:] = True
    every_head = torch.randn(IMAGES * HEADS, TOKENS, TOKENS)
    return [
        {},
        {"attn_mask": causal},
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": every_head},
    ]


@pytest.mark.parametrize("mask", masks(), ids=lambda mask: "+".join(mask) or "none")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{"batch_first": True}, {"bias": False}])
def test_head_attention_equals_the_attention_of_pytorch(
    options: dict[str, bool], need_weights: bool, mask: dict[str, Tensor]
) -> None:
    given, found = made(**options)
    query, key, value = (torch.randn(IMAGES, TOKENS, WIDTH) for _ in range(3))
    if not given.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    expected = given(query, key, value, need_weights=need_weights, **mask)
    outputs = found(query, key, value, need_weights=need_weights, **mask)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


def test_with_separate_heads_skips_attention_with_learned_keys() -> None:
    holder = nn.Sequential(nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True))
    assert type(with_separate_heads(holder)[0]) is nn.MultiheadAttention
