"""Elastic spaces from models of timm, if it is installed."""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.search_spaces import elastic

if find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)

SIZES: dict[str, dict[str, Any]] = {
    "convnext_atto": {},
    "mobilenetv3_small_050": {},
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 4},
}


@pytest.fixture(scope="module")
def operators() -> Any:
    """Declare operators of torchvision, which timm imports, that PyTorch's CPU build lacks."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_timm_model_becomes_a_space_whose_networks_match_and_export(
    name: str, operators: Any, tmp_path: Path
) -> None:
    import timm

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, **SIZES[name])
    images = torch.randn(2, 3, 64, 64)
    space = elastic(model.eval(), images)
    supernet = space.supernet().eval()
    whole = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in space.build(space.smallest()).parameters()) < 0.6 * whole
    with torch.no_grad():
        torch.testing.assert_close(supernet(images), model(images), rtol=1e-5, atol=1e-5)
        for seed in range(3):
            architecture = space.sample(random.Random(seed))
            supernet.activate(architecture)
            extracted = supernet.extract(architecture)
            torch.testing.assert_close(supernet(images), extracted(images), rtol=1e-5, atol=1e-5)
    assert type(extracted) is type(model)
    assert not any(module._forward_hooks for module in extracted.modules())
    export = export_onnx(extracted, (3, 64, 64), tmp_path / "model.onnx", images)
    assert export.max_relative_error < 1e-4
    if name.startswith("vit"):
        heads = {c.name: c.options for c in space.choices if c.name.endswith(".heads")}
        assert heads == {f"blocks.{n}.attn.heads": (2, 3) for n in range(4)}
