"""Workloads of networks, compared with results by hand."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import mobilenet, trace

FLOAT = 4  # bytes


class Network(nn.Module):
    """Network of named parts whose forward pass is a given function of the images and the parts."""

    def __init__(self, forward: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(x, **self.parts)


# Multiply-accumulates


@pytest.mark.parametrize(
    ("layer", "kind", "macs"),
    [
        # output elements x inputs of each
        (nn.Conv2d(4, 8, 3, padding=1), "conv", (8 * 6 * 6) * (4 * 3 * 3)),
        (nn.Conv2d(4, 8, 3, stride=2, padding=1), "conv", (8 * 3 * 3) * (4 * 3 * 3)),
        (nn.Conv2d(4, 8, 3, groups=2), "conv", (8 * 4 * 4) * (2 * 3 * 3)),
        (nn.Conv2d(4, 8, (1, 3)), "conv", (8 * 6 * 4) * (4 * 1 * 3)),
        (nn.Conv2d(4, 8, 1), "pointwise", (8 * 6 * 6) * 4),
        (nn.Conv2d(4, 4, 5, padding=2, groups=4), "depthwise", (4 * 6 * 6) * (5 * 5)),
        (nn.ConvTranspose2d(4, 8, 2, stride=2), "conv", (4 * 6 * 6) * (8 * 2 * 2)),
        (nn.Sequential(nn.Flatten(), nn.Linear(144, 10)), "linear", 144 * 10),
        (nn.Linear(6, 10, bias=False), "linear", (4 * 6) * 6 * 10),
    ],
)
def test_workload_macs_of_layers_equal_results_computed_by_hand(
    layer: nn.Module, kind: str, macs: int
) -> None:
    workload = trace(layer, (4, 6, 6))
    assert workload.macs == macs
    assert [operator.kind for operator in workload.operators if operator.macs] == [kind]


def test_workload_counts_a_gate_as_one_multiplication_per_element() -> None:
    workload = trace(Network(lambda x: x * x.mean((2, 3), keepdim=True)), (4, 6, 6))
    assert workload.macs == 4 * 6 * 6


def test_workload_counts_matrix_products_of_activations() -> None:
    workload = trace(Network(lambda x: x @ x.transpose(2, 3)), (4, 6, 5))
    assert workload.macs == 4 * 6 * 6 * 5
    assert workload.counts()["matmul"] == 1


@given(batch=st.integers(1, 64))
def test_workload_macs_are_proportional_to_the_batch_size(batch: int) -> None:
    layer = nn.Conv2d(3, 8, 3)
    assert trace(layer, (3, 8, 8), batch).macs == batch * trace(layer, (3, 8, 8)).macs


@given(widths=st.lists(st.integers(1, 12), min_size=2, max_size=5))
def test_workload_macs_and_params_of_a_chain_add_up(widths: list[int]) -> None:
    layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths)]
    whole = trace(nn.Sequential(*layers), (widths[0], 5, 5))
    parts = [trace(layer, (layer.in_channels, 5, 5)) for layer in layers]
    assert whole.macs == sum(part.macs for part in parts)
    assert whole.params == sum(part.params for part in parts)
    assert whole.weight_bytes == sum(part.weight_bytes for part in parts) == FLOAT * whole.params


# The graph


def test_workload_records_kernel_size_and_stride() -> None:
    (operator,) = trace(nn.Conv2d(3, 8, 5, stride=2), (3, 9, 9)).operators
    assert (operator.kernel_size, operator.stride, operator.name) == (5, 2, "convolution")


def test_bytes_moved_counts_inputs_weights_and_outputs_once() -> None:
    workload = trace(nn.Conv2d(3, 8, 1, bias=False), (3, 4, 4))
    (operator,) = workload.operators
    assert workload.bytes_moved(operator) == FLOAT * (3 * 16 + 3 * 8 + 8 * 16)
    squared = trace(Network(lambda x: x * x), (3, 4, 4))
    assert squared.bytes_moved(squared.operators[0]) == FLOAT * (3 * 16 + 3 * 16)


def test_workload_marks_a_branch_that_reaches_no_output_as_dead() -> None:
    def forward(x: Tensor, used: nn.Module, unused: nn.Module) -> Tensor:
        unused(x).relu()
        return used(x).relu()

    network = Network(forward, used=nn.Conv2d(3, 4, 1), unused=nn.Conv2d(3, 4, 3))
    workload = trace(network, (3, 4, 4))
    assert [(o.kind, o.dead) for o in workload.operators] == [
        ("conv", True),
        ("activation", True),
        ("pointwise", False),
        ("activation", False),
    ]
    assert workload.counts() == {"pointwise": 1, "activation": 1}


def test_workload_connects_in_place_operators_to_later_ones() -> None:
    """The activation writes into its input; without that connection it would count as dead."""
    block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1))
    first, activation, second = trace(block, (3, 4, 4)).operators
    assert activation.in_place
    assert not activation.dead
    assert activation.inputs == first.outputs
    assert activation.outputs[0] in second.inputs


def test_workload_connects_a_residual_to_both_of_its_readers() -> None:
    workload = trace(Network(lambda x, conv: x + conv(x), conv=nn.Conv2d(3, 3, 1)), (3, 4, 4))
    image = next(tensor.id for tensor in workload.tensors if tensor.role == "input")
    conv, add = workload.operators
    assert image in conv.inputs
    assert add.inputs == (image, conv.outputs[0])
    assert workload.outputs == add.outputs


def test_workload_keeps_the_operators_of_several_outputs() -> None:
    workload = trace(Network(lambda x: {"a": x.relu(), "b": x.sigmoid()}), (3, 4, 4))
    assert len(workload.outputs) == 2
    assert not any(operator.dead for operator in workload.operators)


def test_workload_counts_the_bytes_of_a_shared_weight_once() -> None:
    tied = Network(lambda x, fc: fc(fc(x)), fc=nn.Linear(6, 6, bias=False))
    workload = trace(tied, (1, 1, 6))
    assert workload.weight_bytes == FLOAT * 36
    assert workload.macs == 2 * 36


# Memory


def test_peak_memory_of_a_chain_is_its_largest_pair_of_neighbours() -> None:
    chain = nn.Sequential(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 1, 1))
    assert trace(chain, (2, 5, 5)).peak_activation_bytes == FLOAT * 25 * (6 + 4)


def test_peak_memory_includes_a_residual_until_it_is_added() -> None:
    def forward(x: Tensor, expand: nn.Module, project: nn.Module) -> Tensor:
        y: Tensor = x + project(expand(x))
        return y

    network = Network(forward, expand=nn.Conv2d(2, 6, 1), project=nn.Conv2d(6, 2, 1))
    # While the projection runs: x (2 channels), its input (6) and its output (2).
    assert trace(network, (2, 5, 5)).peak_activation_bytes == FLOAT * 25 * (2 + 6 + 2)


def test_peak_memory_in_int8_is_one_byte_for_each_element() -> None:
    chain = nn.Sequential(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 1, 1))
    assert trace(chain, (2, 5, 5)).peak_int8_activation_bytes == 25 * (6 + 4)


@pytest.mark.parametrize(("inplace", "channels"), [(True, 1 + 6), (False, 6 + 6)])
def test_peak_memory_excludes_in_place_activations(inplace: bool, channels: int) -> None:
    network = nn.Sequential(nn.Conv2d(1, 6, 1), nn.ReLU(inplace=inplace))
    assert trace(network, (1, 5, 5)).peak_activation_bytes == FLOAT * 25 * channels


def test_peak_memory_excludes_views_but_includes_their_tensors() -> None:
    def forward(x: Tensor) -> Tensor:
        flat = x.relu().flatten(1)
        return flat.sigmoid() + flat

    # x + relu, then relu (seen through its view) + sigmoid + their sum
    assert trace(Network(forward), (2, 5, 5)).peak_activation_bytes == FLOAT * 50 * 3


def test_peak_memory_includes_an_unused_input() -> None:
    network = Network(lambda x, fc: fc.weight * 2, fc=nn.Linear(2, 2))
    assert trace(network, (1, 5, 5)).peak_activation_bytes == FLOAT * (25 + 4)


# Tracing


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("training", [True, False])
def test_trace_leaves_the_module_unchanged(device: str, training: bool) -> None:
    with torch.device(device):
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    network.train(training)
    network[2].train(not training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trace(network, (3, 8, 8))
    assert [m.training for m in network] == [training, training, not training]
    assert all(p.device.type == device and p.requires_grad for p in network.parameters())
    if device == "cpu":
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_trace_gives_equal_workloads_for_the_same_network() -> None:
    space = mobilenet((28, 28, 1), 10)
    network, shape = space.build(space.smallest()), space.input_shape(space.smallest())
    first, second = trace(network, shape), trace(network, shape)
    assert first == second
    assert first.id == second.id


def test_trace_gives_different_ids_for_different_networks() -> None:
    space = mobilenet((28, 28, 1), 10)
    workloads = [
        trace(space.build(a), space.input_shape(a)) for a in (space.smallest(), space.largest())
    ]
    assert len({workload.id for workload in workloads}) == 2


def test_trace_cache_distinguishes_equal_arguments_of_other_types() -> None:
    """1 == 1.0 == True in Python, but the results differ in type and in shape."""
    results = [
        trace(Network(forward), (3, 4, 4))
        for forward in (
            lambda x: x.long() + 1,
            lambda x: x.long() + 1.0,
            lambda x: torch.ops.aten.var.correction(x, [1], correction=1),
            lambda x: torch.ops.aten.var.correction(x, [1], keepdim=True),
        )
    ]
    outputs = [workload.tensors[workload.outputs[0]] for workload in results]
    assert [output.bits for output in outputs] == [64, 32, 32, 32]
    assert [len(output.shape) for output in outputs] == [4, 4, 3, 4]


def test_trace_shapes_equal_those_of_a_real_forward_pass() -> None:
    space = mobilenet((8, 8, 1), 10)
    network, shape = space.build(space.largest()).eval(), space.input_shape(space.largest())
    seen: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, args, output: seen.append(tuple(output.shape)))
    workload = trace(network, shape, batch=2)
    seen.clear()  # hooks run during a trace too
    network(torch.zeros(2, *shape))
    convolutions = [o for o in workload.operators if o.name == "convolution"]
    assert [workload.tensors[o.outputs[0]].shape for o in convolutions] == seen


def test_trace_refuses_a_network_that_branches_on_values() -> None:
    network = Network(lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(ConfigError, match=r"Network cannot be traced at \(3, 4, 4\)"):
        trace(network, (3, 4, 4))


def test_trace_refuses_images_of_the_wrong_shape() -> None:
    with pytest.raises(ConfigError, match=r"Conv2d cannot be traced at \(1, 4, 4\)"):
        trace(nn.Conv2d(3, 4, 1), (1, 4, 4))


def test_workload_is_frozen_and_hashable() -> None:
    workload = trace(nn.Conv2d(3, 4, 1), (3, 4, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        workload.operators[0].macs = 0  # type: ignore[misc]
    assert len({workload, trace(nn.Conv2d(3, 4, 1), (3, 4, 4))}) == 1


def test_workload_of_max_pooling_counts_no_indices() -> None:
    """PyTorch makes indices for gradients, twice as large as the result; runtimes do not."""
    workload = trace(nn.MaxPool2d(2), (4, 8, 8))
    (pool,) = workload.operators
    assert pool.kind == "pool"
    assert workload.bytes_moved(pool) == 4 * (4 * 8 * 8 + 4 * 4 * 4)
