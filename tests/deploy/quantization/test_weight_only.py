"""Files whose matrix products have weights of few bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.quantization.weight_only import quantize_weights
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.search_spaces import SearchSpace, mobilenet, vit


def exported(space: SearchSpace, folder: Path) -> Path:
    torch.manual_seed(0)
    network = space.build(space.largest()).eval()
    export_onnx(network, (1, 8, 8), folder / "plain.onnx", traceable=True)
    return folder / "plain.onnx"


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "share"), [(8, 0.5), (4, 0.4)])
def test_file_with_weights_of_few_bits_is_smaller_and_computes_nearly_the_same(
    bits: int, share: float, tmp_path: Path
) -> None:
    plain = exported(vit((8, 8, 1), 10), tmp_path)
    made = quantize_weights(plain, tmp_path / "few.onnx", bits)
    assert number_format(made) == "int8"
    assert made.stat().st_size < share * plain.stat().st_size
    images = np.random.default_rng(0).standard_normal((32, 1, 8, 8), dtype=np.float32)
    expected, found = (outputs_of(file, [images]) for file in (plain, made))
    agreement = np.corrcoef(expected.ravel(), found.ravel())[0, 1]
    assert 1 - agreement < (0.001 if bits == 8 else 0.05)


def test_networks_without_matrix_products_have_no_such_variant(tmp_path: Path) -> None:
    material = VariantInputs(exported(mobilenet((8, 8, 1), 10), tmp_path), ())
    assert "no matrix product" in VARIANTS["int4-weights"].lacks(material)
