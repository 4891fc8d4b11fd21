"""Rules that replace a call by another operator that computes the same, where that is faster.

Sparse operators need weights whose zeros have their structure exactly: whole blocks, or two of each
four neighbours along the input. Layers that other rules fused with more than a normalisation, an
activation or a residual stay dense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from torch import Tensor
from torch.nn import functional

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call
from hwnas.deploy.matching.patterns.chains import normalisation
from hwnas.errors import KernelError
from hwnas.kernels.operator import Operator
from hwnas.kernels.operators.block_sparse import SIDES, block_sparse, pack_blocks
from hwnas.kernels.operators.im2win import im2win
from hwnas.kernels.operators.two_four import pack_two_four, two_four

__all__ = ["choose_block_sparse", "choose_im2win", "choose_two_four"]

_SHARED = ("activation", "residual_first")  # options that sparse operators have, too


def choose_im2win(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a dense convolution by `im2win`."""
    if not is_call(step, "convolution"):
        return None
    return Rewrite([step], [replace(step, operator=im2win)], alternative=True)


def choose_block_sparse(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a linear layer or pointwise convolution, some blocks of whose weight are zero.

    Of all sides of blocks, those are taken with which the fewest values are kept, and of several
    such sides the largest.
    """
    if not _has_zeros(step):
        return None
    weight = step.weights["weight"]
    mask, height, width = max(_block_masks(weight), key=_merit)
    if mask.all():
        return None
    packed = pack_blocks(weight, mask, height, width)
    own = {"blocks": packed.blocks, "places": packed.places, "ends": packed.ends}
    return _sparse(graph, step, block_sparse, own, {"inputs": packed.inputs})


def choose_two_four(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a linear layer or pointwise convolution whose weight has 2:4 sparsity."""
    if not _has_zeros(step):
        return None
    try:
        values, places = pack_two_four(step.weights["weight"])
    except KernelError:  # the weight is dense, as most are
        return None
    return _sparse(graph, step, two_four, {"values": values, "places": places}, {})


def _has_zeros(step: Step) -> TypeGuard[OperatorCall]:
    """Return whether a sparse operator can compute a step if the zeros have its structure."""
    if not is_call(step, "norm_linear", "pointwise") or "gate" in step.reads:
        return False
    return not bool(step.weights["weight"].all())


def _sparse(
    graph: Graph,
    call: OperatorCall,
    operator: Operator,
    weights: Mapping[str, Tensor],
    options: Mapping[str, Any],
) -> Rewrite:
    """Return the rewrite to a sparse operator, and to a normalisation if the call has one."""
    options = {**options, **{k: v for k, v in call.options.items() if k in _SHARED}}
    weights = {**weights, "bias": call.weights["bias"]}
    made = replace(call, operator=operator, weights=weights, options=options)
    if not is_call(call, "norm_linear"):
        return Rewrite([call], [made], alternative=True)
    x, normal = call.reads["x"], f"{call.outputs[0]}/normalised"
    shape, epsilon = graph.shapes[x], call.options["epsilon"]
    first = normalisation(x, normal, shape[-1], epsilon)
    made = replace(made, reads={**call.reads, "x": normal}, nodes=call.nodes[1:])
    return Rewrite([call], [first, made], {normal: shape}, alternative=True)


def _block_masks(weight: Tensor) -> Iterator[tuple[Tensor, int, int]]:
    """Yield the mask of blocks with values that are not zero, for all sides of blocks."""
    filled = (weight != 0).float()[None]
    for height in SIDES:
        for width in SIDES:
            blocks = functional.max_pool2d(filled, (height, width), ceil_mode=True)
            yield blocks[0] > 0, height, width


def _merit(found: tuple[Tensor, int, int]) -> tuple[int, int]:
    mask, height, width = found
    return -int(mask.sum()) * height * width, height * width
