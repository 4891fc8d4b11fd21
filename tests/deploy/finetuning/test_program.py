"""Programs of update schemes: their gradients, and the bytes that they keep and need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.deploy.finetuning.networks import NETWORKS, SHAPE, batch_of, graph_of, made
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from hwnas.deploy import export_onnx
from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.joint_graph import JointGraph, trace_network
from hwnas.deploy.finetuning.layers import SHARES
from hwnas.deploy.finetuning.program import TrainingProgram
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme, bias_only, full, last_layer
from hwnas.deploy.finetuning.training import network_tensors
from hwnas.deploy.onnx.trainable import trainable_network
from hwnas.errors import ArtifactError, ConfigError

Batch = tuple[Tensor, Tensor]


def halves(graph: JointGraph) -> UpdateScheme:
    """Half of every second weight, and every third bias."""
    layers = enumerate(graph.layers)
    return UpdateScheme({each.name: LayerUpdate(0.5 * (i % 2), i % 3 == 0) for i, each in layers})


every_network = pytest.mark.parametrize("name", sorted(NETWORKS))

SCHEMES: dict[str, Callable[[JointGraph], UpdateScheme]] = {
    "full": lambda graph: full(graph.layers),
    "biases": lambda graph: bias_only(graph.layers),
    "last": lambda graph: last_layer(graph.layers),
    "halves": halves,
}


def expected_gradients(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Gradients of all parameters by PyTorch's own backward pass."""
    network.zero_grad()
    F.cross_entropy(network(batch[0]), batch[1]).backward()
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


def check_gradients(network: nn.Module, program: TrainingProgram, batch: Batch) -> None:
    loss, values = program.forward(network_tensors(network), *batch)
    torch.testing.assert_close(loss, F.cross_entropy(network(batch[0]), batch[1]).detach())
    found, expected = program.backward(values), expected_gradients(network, batch)
    assert found
    for tensor, gradient in found.items():
        whole = expected[tensor.parameter]
        wanted = tensor.layer.part(whole, tensor.width) if tensor.width else whole
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


def storages(values: Iterable[Any]) -> dict[int, int]:
    """Bytes of each piece of memory that tensors lie in."""
    found: dict[int, int] = {}
    for value in values:
        if isinstance(value, Tensor):
            found[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, tuple | list):
            found |= storages(value)
    return found


class Step(torch.autograd.Function):
    """Program as a function of PyTorch, so that PyTorch counts what it keeps."""

    @staticmethod
    def forward(
        ctx: Any, program: TrainingProgram, network: nn.Module, batch: Batch, unit: Tensor
    ) -> Tensor:
        loss, values = program.forward(network_tensors(network), *batch)
        needed = {number for step in program.backward_steps for number in step.reads}
        kept = [value for number, value in values.items() if number in needed]
        flat = [t for value in kept for t in (value if isinstance(value, tuple) else (value,))]
        ctx.save_for_backward(*flat)
        return loss * unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError


def counted(run: Callable[[], Any], network: nn.Module) -> int:
    """Bytes that PyTorch keeps for the backward pass of a function, besides weights."""
    fixed = storages([*network.parameters(), *network.buffers()])
    kept: dict[int, int] = {}
    held = []

    def pack(tensor: Tensor) -> Tensor:
        kept.update(storages([tensor]))
        held.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(size for piece, size in kept.items() if piece not in fixed)


def check_bytes(network: nn.Module, program: TrainingProgram, batch: Batch) -> None:
    unit = torch.ones((), requires_grad=True)
    found = counted(lambda: Step.apply(program, network, batch, unit), network)
    assert found == program.memory.saved_bytes


def check_peak(network: nn.Module, program: TrainingProgram, batch: Batch) -> None:
    tensors = network_tensors(network)
    fixed, most = storages(tensors.values()), [0]

    def watch(values: Mapping[int, Any]) -> None:
        live = storages(values.values())
        most.append(sum(size for piece, size in live.items() if piece not in fixed))

    _, values = program.forward(tensors, *batch, watch)
    program.backward(values, watch)
    assert max(most) == program.memory.peak_bytes


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@every_network
def test_program_gives_the_gradients_of_full_backpropagation(name: str, scheme: str) -> None:
    graph = graph_of(name)
    check_gradients(made(name), compile_scheme(graph, SCHEMES[scheme](graph)), batch_of(3))


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("bits", [32, 4])
@every_network
def test_program_predicts_the_bytes_that_are_counted(name: str, bits: int, count: int) -> None:
    graph, network = graph_of(name, count), made(name)
    for scheme in SCHEMES.values():
        program = compile_scheme(graph, scheme(graph), bits)
        check_bytes(network, program, batch_of(count))
        check_peak(network, program, batch_of(count))


@pytest.mark.slow
@every_network
def test_program_of_an_exported_network_is_exact(name: str, tmp_path: Path) -> None:
    export_onnx(made(name), SHAPE, tmp_path / "model.onnx", traceable=name != "attention")
    network = trainable_network(tmp_path / "model.onnx")
    graph, batch = trace_network(network, network.input_shape, 3), batch_of(3)
    assert len(graph.layers) >= len(graph_of(name).layers)
    for scheme in SCHEMES.values():
        program = compile_scheme(graph, scheme(graph))
        check_gradients(network, program, batch)
        check_bytes(network, program, batch)
        check_peak(network, program, batch)


UPDATES = st.builds(LayerUpdate, st.sampled_from([0.0, *SHARES]), st.booleans())


@pytest.mark.slow
@given(st.data())
def test_program_of_any_scheme_is_exact(data: st.DataObject) -> None:
    graph, network = graph_of("convolutional"), made("convolutional")
    names = data.draw(st.sets(st.sampled_from([layer.name for layer in graph.layers]), min_size=1))
    scheme = UpdateScheme({name: data.draw(UPDATES) for name in sorted(names)})
    if not scheme.tensors(graph.layers):
        return
    program = compile_scheme(graph, scheme)
    check_gradients(network, program, batch_of(3))
    check_bytes(network, program, batch_of(3))
    check_peak(network, program, batch_of(3))


def test_program_computes_nothing_below_the_first_trained_layer() -> None:
    graph = graph_of("plain")
    program = compile_scheme(graph, last_layer(graph.layers))
    names = [step.name for step in program.backward_steps]
    assert names
    assert not [name for name in names if "convolution" in name or "threshold" in name]
    whole = [step.name for step in compile_scheme(graph, full(graph.layers)).backward_steps]
    assert sum("convolution_backward" in name for name in whole) == 3  # none for the images


def test_program_keeps_no_input_of_layers_without_trained_weight() -> None:
    """Signs of two rectified maps and of a vector remain, and what pooling and loss need."""
    graph = graph_of("plain")
    program = compile_scheme(graph, bias_only(graph.layers))
    bits = [value for value in program.saved if value.kept_as == "1 bit"]
    assert [value.memory_bytes for value in bits if len(value.shape) == 4] == [192, 192]
    [places] = [value for value in program.saved if value.kept_as == "32 bits"]
    assert places.memory_bytes == 3 * 8 * 4 * 4 * 4
    everything = compile_scheme(graph, full(graph.layers)).memory.saved_bytes
    assert program.memory.saved_bytes < everything / 2


def test_program_keeps_a_part_of_the_input_for_a_part_of_the_weight() -> None:
    graph = graph_of("plain")
    kept = {
        share: compile_scheme(graph, UpdateScheme({"two": LayerUpdate(share)})).memory.saved_bytes
        for share in SHARES
    }
    # The input has 3 x 8 x 8 x 8 numbers of 4 bytes.
    assert kept[0.5] - kept[0.25] == 3 * 2 * 64 * 4
    assert kept[1.0] - kept[0.5] == 3 * 4 * 64 * 4


@every_network
def test_program_of_everything_keeps_no_more_than_pytorch(name: str) -> None:
    network = made(name)
    images, targets = batch_of(3)
    by_pytorch = counted(lambda: F.cross_entropy(network(images), targets), network)
    graph = graph_of(name)
    assert compile_scheme(graph, full(graph.layers)).memory.saved_bytes <= by_pytorch + 4


@every_network
def test_4_bits_keep_less_and_point_the_same_way(name: str) -> None:
    graph, network, batch = graph_of(name), made(name), batch_of(3)
    exact, rounded = (compile_scheme(graph, full(graph.layers), bits) for bits in (32, 4))
    images = 4 * batch[0].numel()
    saved = [program.memory.saved_bytes - images for program in (exact, rounded)]
    assert saved[1] < 0.6 * saved[0]
    gradients = []
    for program in (exact, rounded):
        _, values = program.forward(network_tensors(network), *batch)
        found = program.backward(values).values()
        gradients.append(torch.cat([gradient.flatten() for gradient in found]))
    assert F.cosine_similarity(*gradients, dim=0) > 0.98


def test_compilation_refuses_schemes_that_train_nothing() -> None:
    graph = graph_of("plain")
    with pytest.raises(ConfigError, match="the scheme trains nothing"):
        compile_scheme(graph, UpdateScheme())
    with pytest.raises(ConfigError, match="no layer 'thre'; did you mean 'three'"):
        compile_scheme(graph, UpdateScheme({"thre": LayerUpdate()}))
    with pytest.raises(ConfigError, match="activation_bits is 8; expected 32 or 4"):
        compile_scheme(graph, full(graph.layers), 8)
    with pytest.raises(ConfigError, match=r"trained share of a weight is 0.3; expected one of 0,"):
        LayerUpdate(0.3)


def test_trace_refuses_networks_without_gradients() -> None:
    class Indices(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1).argsort(1).float()

    with pytest.raises(ArtifactError, match="the network cannot be trained"):
        trace_network(Indices(), (3, 8, 8), 2)
