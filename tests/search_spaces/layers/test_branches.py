"""Large depthwise kernels: merged branches compute the same as parallel ones."""

from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces import Stage, mobilenet
from hwnas.search_spaces.layers.branches import DILATED, BranchedDepthwise, merged_branches
from hwnas.search_spaces.quantised import QuantisedSpace

SPACE = mobilenet(
    (24, 24, 3),
    4,
    stages=(Stage(16, 2, (2,), operators=("k3_e1", "k13_e2_b")),),
    resolution=(24,),
    operator_weights="own",
)


def trained(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give a module random weights and statistics, as after a training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                tensor.normal_(0, 0.3, generator=generator)
                if name.endswith("running_var"):
                    tensor.abs_().add_(0.5)
    return module.eval()


@given(
    kernel_size=st.sampled_from(sorted(DILATED)),
    stride=st.sampled_from([1, 2]),
    activation=st.sampled_from(["relu", "hard_swish", "none"]),
    side=st.integers(3, 20),
    seed=st.integers(0, 100),
)
def test_merged_kernel_computes_the_same_as_the_branches(
    kernel_size: int, stride: int, activation: str, side: int, seed: int
) -> None:
    block = trained(BranchedDepthwise(4, kernel_size, stride, activation), seed)  # type: ignore[arg-type]
    assert isinstance(block, BranchedDepthwise)
    images = torch.randn(2, 4, side, side + 1, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        torch.testing.assert_close(block.merged()(images), block(images), rtol=1e-5, atol=1e-5)


def test_exported_network_has_one_depthwise_convolution_a_block(tmp_path: Path) -> None:
    network = trained(SPACE.build(SPACE.largest()))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    path = tmp_path / "model.onnx"
    assert export_onnx(network, (3, 24, 24), path).max_relative_error < 1e-4
    kernels = Counter(
        tuple(attribute.ints)
        for node in onnx.load(path).graph.node
        for attribute in node.attribute
        if attribute.name == "kernel_shape"
    )
    assert kernels[(13, 13)] == 2
    assert set(kernels) == {(1, 1), (3, 3), (13, 13)}
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_branches_cost_as_much_as_the_merged_kernel() -> None:
    plain = mobilenet(
        (24, 24, 3),
        4,
        stages=(Stage(16, 2, (2,), operators=("k13_e2",)),),
        resolution=(24,),
    )
    ours, theirs = SPACE.workload(SPACE.largest()), plain.workload(plain.largest())
    assert (ours.macs, ours.params) == (theirs.macs, theirs.params)
    merged = merged_branches(SPACE.build(SPACE.largest()))
    assert sum(p.numel() for p in merged.parameters()) == ours.params


def test_branches_need_a_known_kernel_size_and_own_weights() -> None:
    stage = Stage(16, 2, operators=("k3_e1", "k13_e2_b"))
    with pytest.raises(ConfigError, match="operator_weights"):
        mobilenet((24, 24, 3), 4, stages=(stage,))
    with pytest.raises(ConfigError, match="5, 7, 9, 11, 13, 15, 17"):
        Stage(16, 2, operators=("k3_e1_b", "k13_e2_b"))
    with pytest.raises(ConfigError, match="branches"):
        QuantisedSpace(SPACE)
