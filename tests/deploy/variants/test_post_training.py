"""Variants of post-training quantisation, made from a real network and from one they do not fit."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from hwnas.deploy import Export, export_onnx
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.quantization.quantize import random_batches
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError

NAMES = ("int8-gptq", "int8-equalised", "int8-rotated", "int8-combined")
BATCHES = random_batches((1, 8, 8), 8, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_variant_is_an_int8_file_and_says_what_was_done(
    name: str, exported: Export, tmp_path: Path
) -> None:
    material = VariantInputs(exported.path, BATCHES, loss=lambda path: 0.0)
    assert VARIANTS[name].lacks(material) == ""
    made = VARIANTS[name].make(material, tmp_path / "made.onnx")
    assert number_format(made.model) == "int8"
    outputs, expected = (outputs_of(each, BATCHES) for each in (made.model, exported.path))
    assert relative_error(outputs, expected) < 0.2
    gptq, equalised, rotated = "compensated_layers", "equalised_places", "rotated_places"
    wanted = {NAMES[0]: {gptq}, NAMES[1]: {equalised}, NAMES[2]: {rotated}}
    wanted["int8-combined"] = {gptq, equalised, rotated}
    assert {key for key in made.about if key != "mean_error_ratio"} == wanted[name]
    assert all(made.about[key] > 0 for key in wanted[name])
    assert made.about.get("mean_error_ratio", 0.0) < 0.9


@pytest.mark.slow
def test_variant_refuses_a_network_without_a_place_for_it(tmp_path: Path) -> None:
    layers = nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 4)
    torch.manual_seed(0)
    plain = export_onnx(nn.Sequential(*layers), (1, 8, 8), tmp_path / "a.onnx", traceable=True)
    material = VariantInputs(plain.path, BATCHES, loss=lambda path: 0.0)
    for name, message in (("int8-equalised", "scales can be moved"), ("int8-rotated", "rotated")):
        with pytest.raises(ArtifactError, match=f"no place where .*{message}.* use int8"):
            VARIANTS[name].make(material, tmp_path / "b.onnx")
        assert not (tmp_path / "b.onnx").exists()


@pytest.mark.slow
def test_variant_fits_a_file_for_one_number_of_images(exported: Export, tmp_path: Path) -> None:
    model = onnx.load(exported.path)
    for end in (model.graph.input[0], model.graph.output[0]):
        end.type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(model, tmp_path / "fixed.onnx")
    material = VariantInputs(tmp_path / "fixed.onnx", BATCHES, loss=lambda path: 0.0)
    made = VARIANTS["int8-combined"].make(material, tmp_path / "made.onnx")
    assert made.about["equalised_places"] > 0


def test_variants_that_depend_on_images_are_not_made_without_them(exported: Export) -> None:
    random = VariantInputs(exported.path, BATCHES)
    assert all("give --data" in VARIANTS[name].lacks(random) for name in NAMES)
