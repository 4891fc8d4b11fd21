"""The vit space: published sizes, nested weights, and export."""

import dataclasses
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces import VitConfig, VitSpace, trace, vit
from hwnas.search_spaces.layers import LowRankLinear
from hwnas.search_spaces.registry import named_space


def test_preset_deit_tiny_has_the_costs_of_the_published_network() -> None:
    """5,717,416 parameters in DeiT's own code; a class token and its position are 192 each.

    Multiply-accumulates are worked out by hand, for 196 tokens: patches, then 12 blocks of
    queries, keys, values and outputs, two products of 3 heads of 64, and the perceptron.
    """
    space = vit((224, 224, 3), 1000, preset="deit-tiny")
    workload = space.workload(space.largest())
    assert space.size() == 1
    assert workload.params == 5_717_416 - 2 * 192
    block = 196 * 4 * 192**2 + 2 * 3 * 196 * 196 * 64 + 196 * 2 * 192 * 768
    assert workload.macs == 196 * 3 * 16**2 * 192 + 12 * block + 192 * 1000


def test_vit_workload_counts_the_products_of_attention() -> None:
    space = vit((8, 8, 1), 10)
    architecture = space.largest()
    workload = space.workload(architecture)
    tokens, heads, head_width, blocks = 16, 4, 16, 4
    products = [operator for operator in workload.operators if operator.kind == "matmul"]
    assert len(products) == 2 * blocks
    assert {operator.macs for operator in products} == {heads * tokens**2 * head_width}
    counts = workload.counts()
    assert (counts["layer_norm"], counts["norm"], counts["other"]) == (2 * blocks + 1, 0, 0)
    assert counts["activation"] == 2 * blocks  # softmax and GELU


@pytest.mark.parametrize("preset", ["tiny", "small", "low-rank", "large", "deit-tiny"])
def test_vit_tensors_have_four_dimensions_at_most(preset: str) -> None:
    space = vit((224, 224, 3), 10, preset=preset, depth=(1,))
    for network in (space.smallest(), space.largest()):
        workload = space.workload(network, batch=2)
        assert max(len(tensor.shape) for tensor in workload.tensors) == 4


def test_preset_mcuformer_reaches_the_memory_of_a_microcontroller() -> None:
    """320 KB hold the smaller networks, at 224 pixels, too, but not the largest one."""
    space = vit((224, 224, 3), 1000, preset="mcuformer")
    values = space.smallest().as_dict()
    small = space.workload(space.architecture({**values, "resolution": 224}))
    assert small.peak_int8_activation_bytes < 320 * 1024 / 2
    assert space.workload(space.largest()).peak_int8_activation_bytes > 320 * 1024


@pytest.mark.parametrize(("patch", "side"), [(32, 224), (28, 224), (24, 216), (20, 220), (16, 224)])
def test_vit_input_is_rounded_to_whole_patches(patch: int, side: int) -> None:
    space = vit((224, 224, 3), 10, preset="mcuformer")
    values = {**space.largest().as_dict(), "patch_size": patch}
    assert space.input_shape(space.architecture(values)) == (3, side, side)


def test_vit_with_a_lower_rank_has_fewer_macs_and_weights() -> None:
    space = vit((32, 32, 3), 10, preset="low-rank")
    values = space.largest().as_dict()
    found = []
    for rank in (0.2, 0.4, 0.6):
        ranks = {name: rank for name in values if name.endswith("rank")}
        found.append(space.workload(space.architecture({**values, **ranks})))
    dense = VitSpace(dataclasses.replace(space.config, rank=()))
    found.append(dense.workload(dense.largest()))
    macs = [workload.macs for workload in found]
    assert macs[0] < macs[1] < macs[2]
    assert found[0].weight_bytes < found[1].weight_bytes < found[2].weight_bytes
    assert macs[1] < macs[3]
    # Rank 0.2 of 96: layers from and to 16 channels, rounded to a multiple of 8.
    shapes = {t.shape for t in found[0].tensors if t.role == "weight" and len(t.shape) == 2}
    assert (24, 96) in shapes
    assert (96, 24) in shapes


def test_low_rank_linear_nests_a_lower_rank_as_its_first_components() -> None:
    layer, part = LowRankLinear(12, 10, 8), LowRankLinear(12, 10, 3)
    reduce, expand = layer[0].weight, layer[1].weight
    part.load_state_dict(
        {
            "reduce.weight": reduce[:3],
            "expand.weight": expand[:, :3],
            "expand.bias": layer[1].bias,
        }
    )
    x = torch.randn(5, 12)
    expected = x @ (expand[:, :3] @ reduce[:3]).T + layer[1].bias
    torch.testing.assert_close(part(x), expected, rtol=1e-5, atol=1e-5)


def test_vit_with_fewer_heads_keeps_the_first_heads() -> None:
    """Compare one head with four of which the last three add nothing: no head is cut."""
    space = vit((8, 8, 1), 10, depth=(1,), width=(32,), mlp_ratio=(2,), patch_size=(2,))
    supernet = space.supernet().eval()
    values = space.largest().as_dict()
    one, four = (
        supernet.extract(space.architecture({**values, "block0.heads": heads})) for heads in (1, 4)
    )
    whole: nn.Module = four.blocks[0].attention.body
    with torch.no_grad():
        whole.output.weight[:, 16:] = 0  # only the first head, of 16 channels, has an effect
    x = torch.randn(2, 16, 32)
    torch.testing.assert_close(one.blocks[0].attention.body(x), whole(x), rtol=1e-5, atol=1e-5)


def test_vit_position_table_nests_by_its_centre() -> None:
    space = VitSpace(
        VitConfig((1,), (16, 24), (2,), patch_size=(4,), resolution=(8, 16), position="table")
    )
    supernet = space.supernet().eval()
    small = supernet.extract(space.smallest())
    shared = supernet.shared.embedding.position.table
    torch.testing.assert_close(small.embedding.position.table, shared[:, :16, 1:3, 1:3])


@pytest.mark.parametrize("patch", [8, 4, 2])
def test_vit_token_depends_only_on_pixels_around_its_patch(patch: int) -> None:
    """A token depends on the pixels around its patch: all others may change."""
    config = VitConfig((1,), (16,), (2,), patch_size=(8, 4, 2), resolution=(32,))
    space = VitSpace(config)
    network = space.build(space.architecture({"patch_size": patch}))
    image = torch.zeros(1, 3, 32, 32)
    row, column = 16 // patch, 8 // patch  # the patch that begins at pixel (16, 8)
    marked = image.clone()
    border = (8 - patch) // 2
    marked[..., 16 - border : 16 + patch + border, 8 - border : 8 + patch + border] = 1

    def seen(x: Tensor) -> Tensor:
        return network.embedding.patches(x)[0, :, row, column]

    assert network.embedding(image).shape == (1, (32 // patch) ** 2, 16)
    torch.testing.assert_close(seen(marked), seen(torch.ones_like(image)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_vit_export_equals_the_network_and_has_four_dimensions_at_most(tmp_path: Path) -> None:
    space = vit((16, 16, 3), 10, preset="low-rank")
    torch.manual_seed(0)
    architecture = space.smallest()
    network, shape = space.build(architecture), space.input_shape(architecture)
    exported = export_onnx(network, shape, tmp_path / "vit.onnx", torch.randn(5, *shape))
    assert exported.max_relative_error < 1e-5
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "vit.onnx")).graph
    ranks = [len(value.type.tensor_type.shape.dim) for value in graph.value_info]
    assert len(ranks) > 20
    assert max(ranks) == 4  # also of queries, keys and values: some converters fail with five


def test_named_space_overrides_the_preset_of_a_vit_space() -> None:
    space = named_space("vit", (28, 28, 1), 7, {"preset": "small", "depth": (1, 3), "dropout": 0.1})
    assert isinstance(space, VitSpace)
    assert (space.config.depth, space.config.dropout, space.config.outputs) == ((1, 3), 0.1, 7)
    assert space.input_shape(space.largest()) == (1, 32, 32)
    outputs = space.build(space.smallest()).eval()(torch.zeros(3, 1, 32, 32))
    assert outputs.shape == (3, 7)


@pytest.mark.parametrize(
    ("side", "preset"), [(8, "tiny"), (16, "tiny"), (28, "small"), (97, "large"), (224, "large")]
)
def test_vit_preset_follows_the_image_size(side: int, preset: str) -> None:
    automatic = vit((side, side, 3), 10)
    assert automatic.config == vit((side, side, 3), 10, preset=preset).config
    assert automatic.input_shape(automatic.largest())[1] >= side


@pytest.mark.parametrize("side", [1, 2, 3])
def test_vit_refuses_images_that_are_too_small(side: int) -> None:
    with pytest.raises(ConfigError, match=f"images of {side} pixels are smaller than a patch"):
        vit((side, side, 1), 10)


def test_vit_depth_counts_blocks() -> None:
    space = vit((8, 8, 1), 10)
    networks = [space.smallest(), space.largest()]
    codes = torch.tensor([space.encode(network).tolist() for network in networks]).numpy()
    assert space.depth(codes).tolist() == [len(space.build(each).blocks) for each in networks]


def test_vit_trace_contains_the_token_shape_of_a_real_pass() -> None:
    space = vit((8, 8, 1), 10)
    network = space.build(space.largest()).eval()
    tokens = network.embedding(torch.zeros(1, 1, 8, 8))
    shapes = {tensor.shape for tensor in trace(network, (1, 8, 8)).tensors}
    assert tuple(tokens.shape) in shapes
