"""Models of timm, where it is installed."""

import random
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from hwnas.search_spaces import elastic

pytest.importorskip("torch_pruning")
if find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)

SIZES: dict[str, dict[str, Any]] = {
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"img_size": 64},
    "resnet18": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_timm_is_a_space(name: str) -> None:
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
    assert {f.reason for f in space.fixed if f.name.endswith("qkv")} <= {
        "its channels are those of attention heads, which stay as they are"
    }
