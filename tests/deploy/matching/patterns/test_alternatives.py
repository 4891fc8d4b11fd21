"""Operators that replace others which compute the same: sparse products, and im2win."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hwnas.deploy import Target
from hwnas.deploy.matching import Decide, chosen_calls, matched
from hwnas.deploy.matching.kernel_plan import KernelPlan
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.sizes import dtype_name
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.tuned import REFERENCE, TunedEntry

from ..graphs import conv, module, network, node, normal

HALF = torch.float16


def two_of_four(*shape: int, seed: int = 0) -> Tensor:
    """Return a random weight (K, C) with two zeros in each four rows."""
    weight = normal(*shape, seed=seed)
    return weight * (torch.arange(shape[0]) % 4 < 2)[:, None]


def of_blocks(kept: int, inner: int = 64, outer: int = 64, side: int = 32) -> Tensor:
    """Return a random weight (K, C) with zeros except in the first ``kept`` blocks."""
    weight, across = normal(inner, outer), outer // side
    for block in range(kept, inner // side * across):
        top, left = block // across * side, block % across * side
        weight[top : top + side, left : left + side] = 0
    return weight


def measured(us: dict[str, float]) -> Decide:
    """Return decisions like those on a GPU where only some operators were tuned, at all sizes.

    The reference took 10 microseconds in each case.
    """

    def times(number: float) -> Times:
        return Times(number, number, number, 10)

    def decide(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
        config = operator.default_config(sizes, dtype)
        name = operator.name.split("_")[0] if operator.name.startswith("fused_") else operator.name
        if name not in us:
            return KernelChoice(config, False)
        known = times(us[name]), "", {REFERENCE: times(10.0)}, {}, ""
        entry = TunedEntry(operator.name, dtype_name(dtype), sizes, config, *known)
        return KernelChoice(config, entry.beats_reference, "measured", entry)

    return decide


@pytest.mark.parametrize(
    ("weight", "operator"),
    [
        (of_blocks(2), "block_sparse"),
        (of_blocks(3), "block_sparse"),
        (of_blocks(4), "pointwise"),
        (of_blocks(0), "block_sparse"),
        (two_of_four(64, 64), "two_four"),
    ],
    ids=["two blocks", "three blocks", "one block too many", "no blocks", "2:4"],
)
def test_matcher_chooses_a_sparse_operator_by_the_zeros_of_the_weight(
    weight: Tensor, operator: str
) -> None:
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Relu", "c", "y")]
    found = network(module(nodes, {"w": weight, "b": normal(64)}, (5, 64)), HALF)
    assert found.counts == {operator: 1}
    assert found.chosen[0].call.nodes == ("MatMul", "Add", "Relu")
    assert not found.left


def test_matcher_keeps_a_layer_dense_if_one_group_of_four_has_a_third_value() -> None:
    weight = two_of_four(64, 64)
    weight[2, 63] = 1
    found = network(module([node("MatMul", "x w", "y")], {"w": weight}, (5, 64)), HALF)
    assert found.counts == {"pointwise": 1}


def test_matcher_keeps_a_layer_dense_if_its_inputs_are_no_multiple_of_four() -> None:
    weight = two_of_four(66, 64)
    found = network(module([node("MatMul", "x w", "y")], {"w": weight}, (5, 66)), HALF)
    assert found.counts == {"pointwise": 1}


@pytest.mark.parametrize("zeros", [of_blocks(2), two_of_four(64, 64)], ids=["blocks", "2:4"])
@pytest.mark.parametrize("residual_first", [True, False])
def test_sparse_pointwise_convolution_takes_residual_and_activation(
    zeros: Tensor, residual_first: bool
) -> None:
    after = ["Add", "Relu"] if residual_first else ["Relu", "Add"]
    ends = {"Add": "{} x", "Relu": "{}"}
    nodes = [
        conv("x w", "a"),
        node(after[0], ends[after[0]].format("a"), "b"),
        node(after[1], ends[after[1]].format("b"), "y"),
    ]
    found = network(module(nodes, {"w": zeros.T[:, :, None, None].contiguous()}, (64, 3, 2)), HALF)
    assert sum(found.counts.values()) == 1
    assert "pointwise" not in found.counts
    assert found.chosen[0].sizes["residual"] == 1
    assert not found.left


@pytest.mark.parametrize("operator", ["block_sparse", "two_four"])
def test_sparse_layer_after_a_normalisation_needs_both_to_be_faster_than_the_fused_one(
    operator: str,
) -> None:
    weight = of_blocks(2) if operator == "block_sparse" else two_of_four(64, 64)
    nodes = [node("LayerNormalization", "x s t", "n"), node("MatMul", "n w", "y")]
    source = module(nodes, {"w": weight, "s": normal(64), "t": normal(64, seed=3)}, (5, 64))
    known = {operator: 2.0, "fused": 3.0}
    chain, sparse = network(source, HALF, measured({**known, "norm_linear": 6.0})).counts
    assert chain.startswith("fused_")
    assert sparse == operator
    found = network(source, HALF, measured({**known, "norm_linear": 4.0}))
    assert found.counts == {"norm_linear": 1}
    assert found.chosen[0].alternative.startswith(f"{operator} was not measured to be faster at ")


@pytest.mark.parametrize(
    ("known", "operator", "reason"),
    [
        ({"pointwise": 4.0, "two_four": 3.0}, "two_four", ""),
        ({"pointwise": 4.0, "two_four": 5.0}, "pointwise", "two_four was not measured to be fas"),
        ({"pointwise": 4.0}, "pointwise", "two_four was not measured to be faster at rows=10,inp"),
        ({"two_four": 3.0}, "", "two_four cannot be compared: pointwise was not measured at image"),
        ({"pointwise": 12.0, "two_four": 9.0}, "two_four", ""),
        ({}, "", "two_four was not measured to be faster at rows=10,inputs=64,outputs=64,res"),
    ],
)
def test_measured_times_decide_between_dense_and_sparse(
    known: dict[str, float], operator: str, reason: str
) -> None:
    source = module([node("MatMul", "x w", "y")], {"w": two_of_four(64, 64)}, (5, 64))
    found = network(source, HALF, measured(known))
    assert set(found.counts) == ({operator} if operator else set())
    assert found.chosen[0].alternative.startswith(reason)


def test_convolution_uses_im2win_where_it_was_measured_to_be_faster() -> None:
    source = module([conv("x w", "a", 3), node("Relu", "a", "y")], {"w": normal(4, 4, 3, 3)})
    assert network(source).counts == {"convolution": 1}
    assert network(source, decide=measured({"convolution": 4.0, "im2win": 3.0})).counts == {
        "im2win": 1
    }
    slower = network(source, decide=measured({"convolution": 3.0, "im2win": 4.0}))
    assert slower.counts == {"convolution": 1}


@pytest.mark.parametrize("faster", ["im2win", "convolution"])
def test_kernel_plan_repeats_the_choice_between_alternatives(faster: str) -> None:
    """The plan decides alone, also where nothing is measured any more."""
    known = {"convolution": 4.0, "im2win": 4.0, faster: 3.0}
    source = module([conv("x w", "y", 3)], {"w": normal(4, 4, 3, 3)})
    decide, target = measured(known), Target.parse("cuda-triton-fp16-b2-t1")
    graph = matched(source, 2, HALF, decide)
    plan = KernelPlan.of(graph, chosen_calls(graph, HALF, decide), HALF, target)
    assert [call.operator for call in plan.calls] == [faster]
    assert network(source, HALF, plan.decide).counts == {faster: 1}
