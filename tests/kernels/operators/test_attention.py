"""The attention operator: against results by hand and a searched network, and extreme scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hwnas.kernels.operators.attention import attention
from hwnas.kernels.operators.norm_linear import fold_norm, norm_linear
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.suite.tolerance import worst_error
from hwnas.search_spaces.layers.attention import Attention, PreNorm


def test_attention_equals_a_result_computed_by_hand() -> None:
    query = torch.tensor([2.0]).view(1, 1, 1, 1)
    key = torch.tensor([0.0, torch.tensor(3.0).log() / 2]).view(1, 2, 1, 1)  # weights 1 to 3
    value = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(attention(query, key, value).item(), 17.5)


@pytest.mark.slow
def test_attention_between_linear_operators_equals_a_transformer_block() -> None:
    torch.manual_seed(0)
    block = PreNorm(24, Attention(24, heads=3, head_width=8)).eval()
    layers = (block.body.query, block.body.key, block.body.value)
    x = torch.randn(2, 17, 24)
    with torch.no_grad():
        weight = torch.cat([layer.weight for layer in layers]).T
        bias = torch.cat([layer.bias for layer in layers])
        folded = fold_norm(block.norm.weight, block.norm.bias, weight, bias)
        query, key, value = norm_linear(x, *folded).unflatten(2, (3, 3, 8)).unbind(2)
        mixed = attention(query, key, value).flatten(2)
        y = pointwise(mixed, block.body.output.weight.T, block.body.output.bias, residual=x)
        torch.testing.assert_close(y, block(x), atol=2e-5, rtol=2e-5)


def test_attention_reads_views_of_one_tensor_without_copies() -> None:
    layer = torch.randn(2, 17, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    parts = dict(zip(("query", "key", "value"), layer.unbind(2), strict=True))
    for name, read in attention.laid_out(parts).items():
        assert read.data_ptr() == parts[name].data_ptr()
    copies = {name: part.contiguous() for name, part in parts.items()}
    assert torch.equal(attention(**parts), attention(**copies))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20), keys=st.integers(1, 70))
def test_attention_does_not_depend_on_the_order_of_keys(seed: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, tokens, 1, 8, generator=generator) for tokens in (3, keys, keys)
    )
    order = torch.randperm(keys, generator=generator)
    torch.testing.assert_close(
        attention(query, key[:, order], value[:, order]), attention(query, key, value)
    )


def on_one_head(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of the operator and of its reference for one query with these scores."""
    inputs = torch.ones(1, 1, 1, 1), scores.view(1, -1, 1, 1), values.view(1, -1, 1, 1)
    return attention(*inputs).view(-1), attention.reference(*inputs).view(-1)


def test_attention_handles_scores_whose_exponentials_overflow() -> None:
    y, truth = on_one_head(torch.tensor([-1e4, 1e4, 9999.0]), torch.tensor([1.0, 2.0, 3.0]))
    assert worst_error(y, truth) <= 1


def test_attention_gives_no_weight_to_scores_of_minus_infinity() -> None:
    scores = torch.zeros(70)
    scores[:64] = -torch.inf
    y, truth = on_one_head(scores, torch.arange(70.0))
    torch.testing.assert_close(y, truth)
    assert y.item() == 66.5


def test_attention_gives_nan_where_pytorch_does() -> None:
    for scores in ([-torch.inf] * 40, [0.0, torch.inf], [0.0] * 39 + [torch.nan]):
        y, truth = on_one_head(torch.tensor(scores), torch.ones(len(scores)))
        assert truth.isnan().all()
        assert y.isnan().all()


def test_attention_reads_views_with_offsets_beyond_32_bits() -> None:
    """Such as views of a packed layer; the system provides only the memory pages that are used."""
    packed = torch.empty(2**31 + 2**20, dtype=torch.float16)
    for shape, strides in (((1, 3, 1, 16), (0, 2**30, 16, 1)), ((2, 3, 1, 16), (2**31, 48, 16, 1))):
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=generator).half() for _ in range(3)]
        views = [packed.as_strided(shape, strides, 16 * i) for i in range(3)]
        for view, value in zip(views, values, strict=True):
            view.copy_(value)
        assert torch.equal(attention(*views), attention(*values))
