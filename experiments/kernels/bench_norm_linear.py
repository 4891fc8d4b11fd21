"""Benchmark of LayerNorm fused with the linear layer after it against the two layers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.norm_linear import norm_linear
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def layers(inputs: Inputs) -> Expression:
    """Return the two layers as PyTorch runs them in an eager network."""
    activate, epsilon = ACTIVATIONS[inputs["activation"]], inputs["epsilon"]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        normalised = functional.layer_norm(x, x.shape[-1:], eps=epsilon)
        y = activate(functional.linear(normalised, weight, bias))
        return y + residual[0] if residual else y

    residual = () if inputs["residual"] is None else (inputs["residual"],)
    return run, (inputs["x"], inputs["weight"].T.contiguous(), inputs["bias"], *residual)


BENCHMARK = Benchmark(
    norm_linear,
    (
        Rival(
            "eager",
            "F.layer_norm, F.linear, F.gelu, scale and shift of the normalisation folded",
            layers,
        ),
    ),
    batches=(1, 8, 64),
)
