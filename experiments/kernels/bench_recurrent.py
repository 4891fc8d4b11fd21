"""Benchmark of a recurrent layer against cuDNN's LSTM, which also multiplies its inputs.

Our operator takes the product of the inputs as given. So cuDNN gets the identity as input weight,
and PyTorch computes the same product before our kernel: both sides compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.errors import KernelError
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.recurrent import LSTM, recurrent

__all__ = ["BENCHMARK"]


def cudnn(inputs: Inputs) -> Expression:
    """Return ``nn.LSTM`` with the same recurrent weights; heads are blocks of one matrix."""
    x, weight = inputs["x"], inputs["weight"]
    if weight.shape[1] != LSTM:
        raise KernelError("cuDNN is compared with LSTMs only, which have 4 gates")
    channels = x.shape[3]
    layer = nn.LSTM(LSTM * channels, channels, bias=False, batch_first=True).to(x.device, x.dtype)
    blocks = [torch.block_diag(*weight[:, gate]) for gate in range(LSTM)]
    with torch.no_grad():
        layer.weight_ih_l0.copy_(_identity(x))
        layer.weight_hh_l0.copy_(torch.cat(blocks))
    known = [inputs["hidden"], inputs["cell"]]
    first = [x.new_zeros(len(x), channels) if each is None else each for each in known]

    def run(x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        y, (_, last) = layer(x, (hidden, cell))
        return y, last[0]

    return run, (x.flatten(2), *(each[None].contiguous() for each in first))


def unrolled(inputs: Inputs) -> Expression:
    """Return the formulas step by step, after the product of the inputs."""
    names = ("weight", "hidden", "cell", "bias")
    present = [name for name in names if inputs[name] is not None]

    def run(x: Tensor, identity: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        own = dict(zip(present, rest, strict=True))
        gates = functional.linear(x, identity).unflatten(2, inputs["x"].shape[2:])
        return recurrent.reference(gates, **own)

    x = inputs["x"]
    return run, (x.flatten(2), _identity(x), *(inputs[name] for name in present))


def product(inputs: Inputs) -> Callable[[], object]:
    """Return the product of the inputs with the identity."""
    return partial(functional.linear, inputs["x"].flatten(2), _identity(inputs["x"]))


def _identity(x: Tensor) -> Tensor:
    return torch.eye(x.shape[2] * x.shape[3], device=x.device, dtype=x.dtype)


BENCHMARK = Benchmark(
    recurrent,
    (
        Rival(
            "eager",
            "nn.LSTM (cuDNN) with the identity as weight of its inputs; the same product runs "
            "before ours",
            cudnn,
            compiled=False,
        ),
        Rival("unrolled", "step by step, after the product of the inputs", unrolled),
    ),
    before=product,
)
