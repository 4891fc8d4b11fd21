"""Elastic spaces from models of Transformers, if it is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search_spaces import ElasticSpace
from hwnas.search_spaces.registry import named_space

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that contains a saved model, like a downloaded one."""
    from transformers import AutoModelForImageClassification, ViTConfig

    config = ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=6, intermediate_size=96,
        image_size=16, patch_size=4, num_labels=5,
    )  # fmt: skip
    AutoModelForImageClassification.from_config(config).save_pretrained(tmp_path / "vit")
    return tmp_path


def space_of(model: str, folder: Path, outputs: int = 5) -> ElasticSpace:
    space = named_space("elastic", (16, 16, 3), outputs, {"model": model}, folder)
    assert isinstance(space, ElasticSpace)
    return space


def test_saved_transformers_model_becomes_a_space_with_its_weights(folder: Path) -> None:
    from transformers import AutoModelForImageClassification

    space = space_of("hf:vit", folder)
    given = AutoModelForImageClassification.from_pretrained(folder / "vit").eval()
    images = torch.randn(2, 3, 16, 16)
    supernet = space.supernet().eval()
    with torch.no_grad():
        torch.testing.assert_close(supernet(images), given(images).logits, rtol=1e-4, atol=1e-5)
    assert space.teacher() is not None
    assert sum(choice.name.endswith(".heads") for choice in space.choices) == 3
    smallest = sum(p.numel() for p in space.build(space.smallest()).parameters())
    assert smallest < 0.6 * sum(p.numel() for p in given.parameters())


def test_model_with_another_number_of_outputs_has_no_teacher(folder: Path) -> None:
    assert space_of("hf:vit", folder, outputs=7).teacher() is None


def test_missing_model_folder_is_refused_with_the_expected_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"a folder that `save_pretrained` wrote"):
        space_of("hf:/no/such/folder", folder)
