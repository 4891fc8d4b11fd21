"""Recurrent cells, compared with those of PyTorch, with heads, and on streams in pieces."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import KernelError
from hwnas.kernels.operators.recurrent import GRU, LSTM, recurrent


def blocks(weight: Tensor, heads: int, gates: int) -> Tensor:
    """The blocks on the diagonal of PyTorch's recurrent weights, (gates H, H)."""
    split = weight.unflatten(0, (gates, heads, -1)).unflatten(3, (heads, -1))  # g, h, out, h, in
    return torch.diagonal(split, dim1=1, dim2=3).permute(3, 0, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("sequences", "steps"), [(1, 6), (18, 2)])
def test_recurrent_with_four_gates_equals_the_lstm_of_pytorch(sequences: int, steps: int) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(5, 12, batch_first=True)
    x, hidden, cell = (torch.randn(sequences, *shape) for shape in ((steps, 5), (12,), (12,)))
    with torch.no_grad():
        truth, (_, last_truth) = layer(x, (hidden[None], cell[None]))
        gates = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0
        weight = blocks(layer.weight_hh_l0, 1, LSTM)
        y, last = recurrent(gates.unflatten(2, (LSTM, 12)), weight, hidden, cell)
    torch.testing.assert_close(y, truth)
    torch.testing.assert_close(last, last_truth[0])


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1, 18])
def test_recurrent_with_three_gates_equals_the_gru_of_pytorch(sequences: int) -> None:
    torch.manual_seed(0)
    layer = nn.GRU(5, 12, batch_first=True)
    x, hidden = torch.randn(sequences, 3, 5), torch.randn(sequences, 12)
    with torch.no_grad():
        truth, last_truth = layer(x, hidden[None])
        known = layer.bias_hh_l0.clone()
        known[24:] = 0  # that of the candidate is inside the product with r
        gates = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + known
        weight = blocks(layer.weight_hh_l0, 1, GRU)
        y, last = recurrent(
            gates.unflatten(2, (GRU, 12)), weight, hidden, bias=layer.bias_hh_l0[24:]
        )
    torch.testing.assert_close(y, truth)
    torch.testing.assert_close(last, last_truth[0])


def test_recurrent_heads_are_independent() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(5, 12, batch_first=True, bias=False)
    x = torch.randn(2, 4, 5)
    with torch.no_grad():
        diagonal = torch.block_diag(*torch.ones(3, 4, 4)).repeat(LSTM, 1)
        layer.weight_hh_l0 *= diagonal
        gates = (x @ layer.weight_ih_l0.T).unflatten(2, (LSTM, 12))
        y, _ = recurrent(gates, blocks(layer.weight_hh_l0, 3, LSTM))
        torch.testing.assert_close(y, layer(x)[0])


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20), cut=st.integers(1, 4), gates=st.sampled_from([LSTM, GRU]))
def test_recurrent_gives_the_same_on_a_stream_in_pieces(seed: int, cut: int, gates: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 5, gates, 6, generator=generator)
    weight = torch.randn(2, gates, 3, 3, generator=generator)
    whole, end = recurrent(x, weight)
    head, state = recurrent(x[:, :cut], weight)
    tail, last = recurrent(x[:, cut:], weight, head[:, -1], state if gates == LSTM else None)
    assert torch.equal(torch.cat([head, tail], 1), whole)
    assert torch.equal(last, end)


def test_recurrent_holds_its_state_if_saturated_and_propagates_nan() -> None:
    x = torch.tensor([-200.0, 200.0, 0.0, 200.0]).view(1, 1, LSTM, 1).repeat(1, 20, 1, 1)
    weight, start = torch.zeros(1, LSTM, 1, 1), torch.ones(1, 1)
    _, last = recurrent(x, weight, start, 3 * start)
    assert last.item() == 3
    x[:, 7] = torch.nan
    y, _ = recurrent(x, weight)
    assert y[0, :, 0].isnan().tolist() == [False] * 7 + [True] * 13


def test_recurrent_refuses_zero_steps_and_two_gates() -> None:
    weight = torch.zeros(1, LSTM, 2, 2)
    for x, matrices in (
        (torch.zeros(1, 0, LSTM, 2), weight),
        (torch.zeros(1, 1, 2, 2), weight[:, :2]),
    ):
        with pytest.raises(KernelError, match=r"for 4 gates .* for 3 .*; given"):
            recurrent(x, matrices)
