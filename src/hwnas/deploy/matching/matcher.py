"""Matching of a network to operators: all rules, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hwnas.deploy.matching.choices import Decide, Decided, decided, is_slower, reason_against
from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Rule, Step, is_node
from hwnas.deploy.matching.patterns.activations import gather_products
from hwnas.deploy.matching.patterns.alternatives import (
    choose_block_sparse,
    choose_im2win,
    choose_two_four,
)
from hwnas.deploy.matching.patterns.attention import match_attention, match_slim_attention
from hwnas.deploy.matching.patterns.bottlenecks import (
    fuse_depthwise_pointwise,
    fuse_inverted_bottleneck,
    fuse_squeeze_excite,
)
from hwnas.deploy.matching.patterns.chains import (
    chain_pooling,
    chain_product,
    chain_rounding,
    gather_rounding,
)
from hwnas.deploy.matching.patterns.group_norm import gather_group_norm
from hwnas.deploy.matching.patterns.int8_layers import fold_int8_bias, match_int8_layer
from hwnas.deploy.matching.patterns.layers import (
    fold_activation,
    fold_bias,
    fold_residual,
    match_convolution,
    match_linear,
)
from hwnas.deploy.matching.patterns.lookups import (
    fold_int8_residual,
    fold_lookup,
    gather_lookup,
)
from hwnas.deploy.matching.patterns.quantised import (
    dequantise_constants,
    drop_unread,
    move_views,
    sign_steps,
)
from hwnas.deploy.matching.patterns.recurrence import match_recurrent
from hwnas.deploy.matching.patterns.tokens import fold_norms, join_linear
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.errors import KernelError

__all__ = ["matched"]

_QUANTISED: tuple[Rule, ...] = (
    sign_steps,
    move_views,
    match_int8_layer,
    dequantise_constants,
    fold_int8_bias,
    gather_lookup,
    drop_unread,
    fold_lookup,
    fold_int8_residual,
    chain_pooling,
    chain_product,
    gather_rounding,
    chain_rounding,
    drop_unread,
)
_RULES: tuple[Rule, ...] = (
    gather_products,
    gather_group_norm,
    match_recurrent,
    match_convolution,
    match_linear,
    fold_bias,
    fold_activation,
    fold_residual,
    fold_activation,
    match_slim_attention,
    match_attention,
    fold_norms,
    join_linear,
    fuse_inverted_bottleneck,
    fuse_squeeze_excite,
    fuse_depthwise_pointwise,
    chain_pooling,
    choose_block_sparse,
    choose_two_four,
    choose_im2win,
)


def matched(module: OnnxModule, batch: int, dtype: torch.dtype, decide: Decide = decided) -> Graph:
    """Return a network's graph with as many nodes as possible replaced by operator calls.

    Args:
        module: Network as read from a file.
        batch: Number of images in a run.
        dtype: Type that the network computes in.
        decide: Function that chooses kernel or PyTorch for an operator. Operators are fused only if
            the fused one runs as a kernel and was not measured to be slower, and replaced by
            alternatives only if `reason_against` knows no reason against it.
    """
    graph = Graph.of(module, batch)
    quantised = any(is_node(step, "QuantizeLinear") for step in graph.steps)
    for rule in (*_QUANTISED, *_RULES) if quantised else _RULES:
        for step in graph.steps:
            graph = _matched(graph, step, rule, dtype, decide)
    return graph


def _matched(graph: Graph, step: Step, rule: Rule, dtype: torch.dtype, decide: Decide) -> Graph:
    """Apply a rule to one step of a graph; earlier rewrites may have removed the step."""
    now = graph.maker(step.outputs[0])
    found = None if now is None else rule(graph, now)
    made = _made(graph, found, dtype, decide) if isinstance(found, Rewrite) else found
    if isinstance(made, str):
        if isinstance(found, Rewrite) and found.alternative and isinstance(now, OperatorCall):
            return graph.with_alternative(now, made)
        return graph.with_reason(step, made)
    return graph if made is None else made


def _made(graph: Graph, change: Rewrite, dtype: torch.dtype, decide: Decide) -> Graph | str | None:
    """Return the graph with a rewrite, or the reason against it; None where it is not worth it."""
    new = graph.rewritten(change)
    if not new.complete:
        return "other nodes read values between its parts"

    def choices(among: Graph, steps: Sequence[Step]) -> list[Decided]:
        found = []
        for call in (step for step in steps if isinstance(step, OperatorCall)):
            inputs = among.bound(call, dtype)
            sizes = call.operator.sizes(inputs)
            choice = decide(call.operator, sizes, call.type_in(dtype))
            found.append(Decided(call.operator, inputs, choice))
        return found

    try:
        whole = choices(new, change.new)
    except KernelError as error:
        return str(error)
    parts = choices(graph, change.old)
    if change.alternative:
        return reason_against(whole, parts) or new
    if _operators(change.new) <= _operators(change.old) or not parts:
        return new
    worth_it = all(each.choice.kernel for each in whole) and not is_slower(whole, parts)
    return new if worth_it else None


def _operators(steps: Sequence[Step]) -> set[str]:
    return {step.operator.name for step in steps if isinstance(step, OperatorCall)}
