"""Benchmark of fused inverted bottlenecks against their layers, on a channels-last map."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import depthwise_filters, nchw, nhwc, one_by_one
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.inverted_bottleneck import inverted_bottleneck
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def layers(inputs: Inputs) -> Expression:
    """Return the block as PyTorch runs it in an eager network."""
    activate, stride = ACTIVATIONS[inputs["activation"]], inputs["stride"]
    squeezes = inputs["reduce_weight"] is not None

    def run(
        x: Tensor, expand: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor
    ) -> Tensor:
        hidden = activate(functional.conv2d(x, expand, shift))
        padding = weight.shape[2] // 2
        hidden = activate(functional.conv2d(hidden, weight, bias, stride, padding, 1, len(weight)))
        project, project_shift, *rest_ = rest
        if squeezes:
            reduce, reduce_shift, excite, excite_shift, *rest_ = rest_
            means = hidden.mean((2, 3), keepdim=True)
            vector = functional.relu(functional.conv2d(means, reduce, reduce_shift))
            gate = functional.conv2d(vector, excite, excite_shift)
            hidden = hidden * functional.hardsigmoid(gate)
        y = functional.conv2d(hidden, project, project_shift)
        return nhwc(y + rest_[0] if rest_ else y)

    tensors = [nchw(inputs["x"]), one_by_one(inputs["expand_weight"]), inputs["expand_bias"]]
    tensors += [depthwise_filters(inputs["weight"]), inputs["bias"]]
    for name in ("project", "reduce", "excite") if squeezes else ("project",):
        tensors += [one_by_one(inputs[f"{name}_weight"]), inputs[f"{name}_bias"]]
    if inputs["residual"] is not None:
        tensors.append(nchw(inputs["residual"]))
    return run, tuple(tensors)


BENCHMARK = Benchmark(
    inverted_bottleneck,
    (
        Rival(
            "eager",
            "F.conv2d of all layers, F.hardswish, squeeze-excite where there is one, channels-last,"
            " batch normalisations folded",
            layers,
        ),
    ),
)
