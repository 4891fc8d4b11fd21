"""Files of networks that were trained with few bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.onnx.node_names import block_of
from hwnas.deploy.quantization.grids import has_grids
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.runtimes.onnx import OnnxSession
from hwnas.search_spaces import SearchSpace, mobilenet, resnet, vit, with_statistics
from hwnas.search_spaces.layers.binarisers import BINARISATIONS
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace
from hwnas.search_spaces.quantised.attached import WEIGHT, quantised_layers


def network_of(space: SearchSpace, images: Tensor, **options: Any) -> torch.nn.Module:
    """Return the largest network with the given options for all blocks, and with its ranges set."""
    made = QuantisedSpace(space, QuantisationConfig((2, 3, 8), (6, 8), **options))
    values = made.largest().as_dict()
    bits = {"weight_bits": 3, "activation_bits": 6}
    values = {name: bits.get(name.rpartition(".")[2], value) for name, value in values.items()}
    torch.manual_seed(0)
    network = made.build(made.architecture(values)).train()
    for module in with_statistics(network):
        module.momentum = 1.0
    with torch.no_grad():
        network(images)
    return network.eval()


@pytest.mark.slow
@pytest.mark.parametrize("symmetry", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(
    "space", [mobilenet((8, 8, 1), 10), vit((8, 8, 1), 10)], ids=["cnn", "vit"]
)
def test_quantised_file_has_the_integers_of_the_training(
    space: SearchSpace, symmetry: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    images = torch.randn(64, 1, 8, 8)
    network = network_of(space, images, symmetry=(symmetry,), granularity=("tensor",))
    trained = {
        name: of_weight.rounded(layer.get_parameter(WEIGHT).detach())[1]
        for name, layer, of_weight, _ in quantised_layers(network)
    }
    plain = tmp_path / "plain.onnx"
    export_onnx(network, (1, 8, 8), plain, images[:8], traceable=True)
    assert has_grids(plain)
    int8 = quantize_int8(plain, tmp_path / "int8.onnx", [images.numpy()], reduce_range=False)
    stored = steps_in(int8)
    assert stored.keys() == trained.keys()
    for name, steps in trained.items():
        # A batch normalisation of negative scale, folded into the weights, turns their signs.
        own = stored[name].reshape(len(steps), -1)
        expected = steps.numpy().reshape(len(steps), -1)
        same = (own == expected).all(1) | (own == -expected).all(1)
        assert same.all(), name
    with torch.no_grad():
        wanted = network(images).numpy()
    # Fused operators overflow on processors without VNNI, as the range is not reduced.
    found = OnnxSession(int8, batch=1, threads=1, optimised=False).run(images.numpy())
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.95


def steps_in(model: Path) -> dict[str, np.ndarray]:
    """Return the integers of each layer's weights, (out, ...), by the name of the layer."""
    graph = onnx.load(model).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    sources = {node.output[0]: node for node in graph.node}
    found = {}
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        source = sources.get(node.input[1])
        if source is not None and source.input[0] in tensors:
            steps = tensors[source.input[0]].astype(int)
            found[block_of(node.name)] = steps.T if node.op_type == "MatMul" else steps
    return found


def network_of_one_bit(
    space: SearchSpace, method: Any, others: int, images: Tensor
) -> torch.nn.Module:
    """Return the largest network with one bit, but ``others`` at the ends, and its ranges set."""
    torch.manual_seed(1)
    config = QuantisationConfig((1, others), (1, others), binarisation=method)
    made = QuantisedSpace(space, config)
    inner = {c.name for c in made.choices if c.name.endswith("_bits") and len(c.options) > 1}
    values = {n: 1 if n in inner else v for n, v in made.largest().as_dict().items()}
    network = made.build(made.architecture(values)).train()
    for module in with_statistics(network):
        module.momentum = 1.0
    for _, _, _, of_input in quantised_layers(network):
        if of_input.threshold is not None:
            torch.nn.init.normal_(of_input.threshold, std=0.1)
    with torch.no_grad():
        network(images)
    return network.eval()


@pytest.mark.slow
@pytest.mark.parametrize("method", BINARISATIONS)
@pytest.mark.parametrize("space", [resnet((8, 8, 1), 10), vit((8, 8, 1), 10)], ids=["cnn", "vit"])
def test_files_of_one_bit_have_signs_and_the_outputs_of_the_network(
    space: SearchSpace, method: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    images, plain = torch.randn(64, 1, 8, 8), tmp_path / "plain.onnx"
    network = network_of_one_bit(space, method, 32, images)
    with torch.no_grad():
        wanted = network(images).numpy()
    export_onnx(network, (1, 8, 8), plain, images[:8], traceable=space.traceable)
    found = OnnxSession(plain, batch=1, threads=1).run(images.numpy())
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99

    network = network_of_one_bit(space, method, 8, images)
    export_onnx(network, (1, 8, 8), plain, images[:8], traceable=space.traceable)
    int8 = quantize_int8(plain, tmp_path / "int8.onnx", [images.numpy()], reduce_range=False)
    stored = steps_in(int8)
    for name, _, of_weight, _ in quantised_layers(network):
        if of_weight.precision.weight_bits == 1:
            assert set(np.unique(stored[name])) == {-1, 1}, name
    with torch.no_grad():
        wanted = network(images).numpy()
    found = OnnxSession(int8, batch=1, threads=1, optimised=False).run(images.numpy())
    # Random signs amplify the rounding at the ends; below .4, signs turn elsewhere, too.
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.4
