"""Sparse networks in training and in int8: zeros stay zeros."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.sparsity import SparsitySettings
from hwnas.deploy.sparsity.conversion import SparseConversion
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.deploy.variants.sparsity import is_two_of_four


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(),
        nn.Linear(32, 2),
    )  # fmt: skip


def batches() -> list[Tensor]:
    return [torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(i)) for i in range(2)]


def fine_tuned(network: nn.Module, conversion: SparseConversion) -> nn.Module:
    conversion.begin(network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.1)
    for images in batches() * 2:
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()
    network.eval()
    return network


@pytest.mark.parametrize("words", ["2of4", "unstructured-25-wanda"])
@pytest.mark.parametrize("rounded", [False, True])
def test_training_changes_weights_and_leaves_zeros(words: str, rounded: bool) -> None:
    settings = SparsitySettings.parse(words.split("-"))
    rounding = FakeQuantisation(127) if rounded else None
    conversion = SparseConversion(settings, batches(), rounding)
    network = small_network()
    parameters = {name for name, _ in network.named_parameters()}
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fine_tuned(network, conversion)
    outputs = network(batches()[0])
    conversion.end(network)
    assert conversion.pruned is not None
    assert {name for name, _ in network.named_parameters()} == parameters
    for name, mask in conversion.pruned.masks.items():
        weight = network.get_submodule(name).weight
        assert (weight[~mask] == 0).all()
        assert (weight != before[f"{name}.weight"])[mask].any()
    tolerance = 0.1 if rounded else 1e-6  # weights stay unrounded until they are quantised
    torch.testing.assert_close(network(batches()[0]), outputs, atol=tolerance, rtol=tolerance)
    if words == "2of4":
        assert [is_two_of_four(network[i].weight) for i in (0, 3, 5)] == [False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["2of4", "unstructured-25", "block8x2-50"])
def test_quantised_files_keep_zeros_exactly(words: str, tmp_path: Path) -> None:
    settings = SparsitySettings.parse(words.split("-"))
    conversion = SparseConversion(settings, batches(), FakeQuantisation())
    network = fine_tuned(small_network(), conversion)
    conversion.end(network)
    assert conversion.pruned is not None
    file = tmp_path / "network.onnx"
    export_onnx(network, (3, 6, 6), file)
    quantize_int8(file, file, [batch.numpy() for batch in batches()])
    found = {
        tuple(sorted(tensor.dims)): numpy_helper.to_array(tensor)
        for tensor in onnx.load(file).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
    }
    for mask in conversion.pruned.masks.values():
        steps = found[tuple(sorted(mask.shape))]
        kept = mask.numpy() if steps.shape == mask.shape else mask.numpy().T
        assert (steps[~kept] == 0).all()
        assert np.count_nonzero(steps) > 0.8 * kept.sum()
