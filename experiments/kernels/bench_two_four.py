"""Benchmark of 2:4 sparse linear layers against dense ones and PyTorch's sparse tensor cores."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.two_four import two_four, unpack_two_four
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def dense(inputs: Inputs) -> Expression:
    """Return the dense layer, which also multiplies the zeros."""
    weight = unpack_two_four(inputs["values"], inputs["places"]).T.contiguous()
    activate = ACTIVATIONS[inputs["activation"]]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        y = activate(functional.linear(x, weight, bias))
        return y + residual[0] if residual else y

    residual = () if inputs["residual"] is None else (inputs["residual"],)
    return run, (inputs["x"], weight, inputs["bias"], *residual)


def semi_structured(inputs: Inputs) -> Expression:
    """Return the layer by cuSPARSELt or CUTLASS, where PyTorch supports them for these sizes."""
    from torch.sparse import to_sparse_semi_structured

    run, (x, weight, *others) = dense(inputs)
    return run, (x, to_sparse_semi_structured(weight), *others)


BENCHMARK = Benchmark(
    two_four,
    (
        Rival("eager", "F.linear of the dense weight with its zeros, F.hardswish", dense),
        Rival(
            "sparse",
            "F.linear of torch.sparse.to_sparse_semi_structured, F.hardswish",
            semi_structured,
            compiled=False,
        ),
    ),
)
