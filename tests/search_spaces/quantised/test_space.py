"""Spaces of quantised networks: options, costs, and the penalty on weights."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, batch_norms, mobilenet, with_statistics
from hwnas.search_spaces.any_model.analysis import elastic
from hwnas.search_spaces.layers.binarisers import (
    BINARISATIONS,
    LEAST_POSITIVE,
    Binarisation,
    signs,
)
from hwnas.search_spaces.layers.binary_product import PackedSigns, xnor_product
from hwnas.search_spaces.layers.quantisers import LayerPrecision
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace
from hwnas.search_spaces.quantised.attached import attach, quantised_layers, set_precision
from hwnas.search_spaces.quantised.distribution import weight_distribution_loss
from hwnas.search_spaces.quantised.space import quantised

PLAIN = mobilenet((8, 8, 1), 10)
SPARSE = QuantisedSpace(PLAIN, QuantisationConfig((4, 8), (8,), sparsity=("1of4", "2of4", "dense")))
SPACE = QuantisedSpace(PLAIN, QuantisationConfig((2, 4, 8), (4, 8)))


def with_bits(weights: int, activations: int) -> Architecture:
    """Return the largest network with these bits in all blocks but the first and the last."""
    bits = {"weight_bits": weights, "activation_bits": activations}
    values = SPACE.largest().as_dict()
    return SPACE.architecture({n: bits.get(n.rpartition(".")[2], v) for n, v in values.items()})


def test_blocks_of_a_network_have_the_chosen_bits() -> None:
    architecture = SPACE.sample(random.Random(3))
    values = architecture.as_dict()
    found = {n: w.precision for n, _, w, _ in quantised_layers(SPACE.build(architecture))}
    assert found["stem.conv"].weight_bits == found["classifier.outputs"].weight_bits == 8
    block = "stages.1.0"
    of_block = [p for name, p in found.items() if name.startswith(block)]
    assert len(of_block) >= 2
    assert {p.weight_bits for p in of_block} == {values[f"{block}.weight_bits"]}
    assert {p.activation_bits for p in of_block} == {values[f"{block}.activation_bits"]}


def test_costs_count_the_bits_of_weights_and_products() -> None:
    network = with_bits(4, 8)
    layers = {n: m.weight.numel() for n, m, _, _ in quantised_layers(SPACE.build(network))}  # type: ignore[union-attr, operator]
    ends = sum(size for name, size in layers.items() if name.startswith(("stem", "classifier")))
    inner = sum(layers.values()) - ends
    plain = PLAIN.workload(SPACE.unquantised(network))
    costs = SPACE.workload(network)
    others = plain.weight_bytes - 4 * sum(layers.values())
    assert costs.weight_bytes == others + ends + inner // 2
    assert costs.macs == plain.macs
    half, eight = SPACE.workload(with_bits(2, 8)), SPACE.workload(with_bits(8, 8))
    assert costs.bit_operations < eight.bit_operations < plain.bit_operations
    saved = eight.bit_operations - costs.bit_operations
    assert saved == pytest.approx(2 * (costs.bit_operations - half.bit_operations))


def test_layers_that_a_shallow_network_lacks_have_no_format() -> None:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(3))

    class Residual(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)  # type: ignore[no-any-return]

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), *map(Residual, blocks), nn.Flatten(), nn.Linear(288, 3)
    )
    within = elastic(model, torch.zeros(2, 1, 8, 8), min_depth=0)
    space = QuantisedSpace(within, QuantisationConfig((4, 8), (8,)))
    layers = {n for n, _, _, _ in quantised_layers(space.build(space.smallest()))}
    chosen = {n.removesuffix(".weight_bits") for n in space.smallest().as_dict() if "bits" in n}
    assert chosen <= layers
    everything = {n for n, _, _, _ in quantised_layers(space.build(space.largest()))}
    assert len(everything) > len(layers)


def test_sparse_blocks_store_fewer_weights() -> None:
    dense = SPARSE.largest()
    values = dense.as_dict()
    names = [name for name in values if name.endswith(".sparsity")]
    assert names
    assert not any(name.startswith(("stem", "classifier")) for name in names)
    sparse = SPARSE.architecture({**values, **dict.fromkeys(names, "2of4")})
    pruned = expected = 0.0
    for name, layer, _, _ in quantised_layers(SPARSE.build(sparse)):
        weight = layer.weight.detach()  # type: ignore[union-attr, operator]
        fits = weight.shape[1] % 4 == 0 and not name.startswith(("stem", "classifier"))
        groups = weight.movedim(1, -1).reshape(-1, 4) if fits else weight.reshape(-1, 1)
        assert ((groups != 0).sum(1) <= (2 if fits else 1)).all()
        if fits:
            pruned += weight.numel() / 2
            expected += weight.numel() * (8 - (8 + 2) / 2) / 8
    assert pruned > 0
    costs, whole = SPARSE.workload(sparse), SPARSE.workload(dense)
    assert whole.weight_bytes - costs.weight_bytes == expected
    assert whole.macs == costs.macs
    assert whole.bit_operations > costs.bit_operations
    codes = np.stack([SPARSE.encode(each) for each in (dense, sparse)])
    counted = SPARSE.counted(codes)["weight_bytes"]
    assert counted.tolist() == [whole.weight_bytes, costs.weight_bytes]


def test_statistics_of_quantised_networks_include_the_ranges() -> None:
    network = SPACE.build(SPACE.largest())
    layers = len(list(quantised_layers(network)))
    assert len(with_statistics(network)) == layers + len(batch_norms(network))


def test_only_inputs_of_one_bit_have_thresholds_in_reactnets_way() -> None:
    config = QuantisationConfig((1, 8), (1, 8), binarisation="react")
    space = QuantisedSpace(PLAIN, config)
    network = space.build(space.smallest())
    for name, layer, of_weight, of_input in quantised_layers(network):
        end = name.startswith(("stem", "classifier"))
        assert of_weight.precision.weight_bits == (8 if end else 1)
        assert (of_input.threshold is None) == end
        if of_input.threshold is not None:
            assert of_input.threshold.shape == (layer.in_channels, 1, 1)
    largest = quantised_layers(space.build(space.largest()))
    assert all(of_input.threshold is None for *_, of_input in largest)


@pytest.mark.parametrize("method", BINARISATIONS)
def test_a_layer_of_one_bit_is_a_product_by_xnor_times_scales(method: Binarisation) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(5, 4, 3, padding=1, bias=False)
    network = attach(nn.Sequential(layer))
    precision = LayerPrecision(1, 1, binarisation=method)
    set_precision(network, lambda name: precision)
    x = torch.randn(2, 5, 6, 6)
    with torch.no_grad():
        wanted = network.train()(x)
        windows = nn.functional.unfold(signs(x, LEAST_POSITIVE), 3, padding=1).mT.flatten(0, 1)
        found = xnor_product(
            PackedSigns.of(windows), PackedSigns.of(signs(layer.weight).flatten(1))
        )
        scale = x.abs().mean() if method == "xnor" else torch.tensor(1.0)
        scales = scale * layer.weight.flatten(1).abs().amax(1)
        product = torch.from_numpy(found).float() * scales
    torch.testing.assert_close(product.reshape(2, 36, 4).mT.reshape(2, 4, 6, 6), wanted)


def test_identity_is_that_of_earlier_versions_without_one_bit() -> None:
    assert "binarisation" not in SPACE.identity
    assert "sparsity" not in SPACE.identity
    assert SPARSE.fingerprint != SPACE.fingerprint
    methods = [QuantisationConfig((1, 8), (8,), binarisation=m) for m in ("bnn", "xnor")]
    first, second = (QuantisedSpace(PLAIN, config).fingerprint for config in methods)
    assert first != second


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weight_bits": (0, 8)}, "has 0; expected 1 to 8 bits, or 32"),
        ({"activation_bits": (16,)}, "has 16; expected 1 to 8 bits"),
        ({"weight_bits": (1, 8), "binarisation": "xnr"}, "binarisation is 'xnr'.*xnor"),
        ({"weight_bits": (8, 4)}, "in rising order"),
        ({"weight_bits": ()}, "in rising order"),
        ({"weight_bits": (4.0, 8)}, "has 4.0"),
        ({"granularity": ("row",)}, "space.granularity has 'row'"),
        ({"symmetry": ()}, "expected symmetric or asymmetric"),
        ({"weight_bits": (8,), "activation_bits": (8,)}, "one number format only"),
        ({"sparsity": ("dense", "2of4")}, "different densities in rising order"),
        ({"sparsity": ()}, "different densities in rising order"),
        ({"sparsity": ("4of4", "dense")}, "has '4of4'; expected N of M weights"),
        ({"sparsity": ("block4x4", "dense")}, "has 'block4x4'; expected N of M weights"),
        ({"sparsity": ("sparse",)}, "has 'sparse'; expected N of M weights"),
        ({"sparsity": (0.5,)}, "has 0.5; expected N of M weights"),
        ({"sparsity": ("3of7", "dense")}, "has '3of7', but it fits no layer"),
        (
            {"sparsity": ("2of4", "dense"), "weight_bits": (1, 8)},
            "leave 1 out of space.weight_bits",
        ),
        ({"network": {"name": "mobilnet"}}, "mobilenet"),
        ({"network": {"preset": "huge"}}, "preset"),
    ],
)
def test_quantised_refuses_wrong_options(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        quantised((8, 8, 1), 10, **options)  # type: ignore[arg-type]


def loss_of(weight: torch.Tensor) -> float:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data = weight
    return weight_distribution_loss(attach(nn.Sequential(layer))).item()


def test_weight_distribution_loss_prefers_uniform_weights() -> None:
    torch.manual_seed(0)
    assert loss_of(torch.rand(300, 300) - 0.5) == pytest.approx(0, abs=1e-3)
    assert loss_of(torch.randn(300, 300)) == pytest.approx((3 - 1.8) ** 2, rel=0.05)
    skewed = torch.rand(300, 300).square()
    assert loss_of(skewed) == pytest.approx(loss_of(-3 * skewed), rel=1e-3)
    assert loss_of(skewed) > 0.3
    assert float(weight_distribution_loss(nn.Linear(3, 3))) == 0
