"""Sparse variants: their names, what they need, and one-shot pruning of a file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from hwnas.deploy import Export
from hwnas.deploy.onnx.graph import model_bytes
from hwnas.deploy.quantization.quantize import random_batches
from hwnas.deploy.sparsity import CRITERIA, SparsitySettings, Structure
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.named import variant_named
from hwnas.deploy.variants.sparse import Sparse
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError, ConfigError

BATCHES = random_batches((1, 8, 8), 16)


@given(
    structure=st.sampled_from(["unstructured", "2of4", "block16x32"]),
    percent=st.none() | st.integers(1, 100),
    criterion=st.sampled_from(sorted(CRITERIA)),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    number_format=st.sampled_from(["fp32", "int8"]),
)
def test_name_describes_the_variant(
    structure: str,
    percent: int | None,
    criterion: str,
    flags: tuple[bool, bool, bool, bool],
    number_format: str,
) -> None:
    searched, by_macs, refined, one_shot = flags
    free = Structure.parse(structure).free
    settings = SparsitySettings(
        Structure.parse(structure),
        percent / 100 if percent is not None and free else None,
        criterion,
        searched and free,
        by_macs and searched and free,
        refined,
    )
    variant = Sparse(settings, number_format, one_shot)
    assert variant_named(variant.name) == variant


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sparse-2of4-60", "density is 0.6, but structure 2of4 keeps exactly 0.5"),
        ("sparse-block16", "unknown sparsity structure 'block16'; expected"),
        ("sparse-2of4-int4", "'int4' is neither a density in percent"),
        ("sparse-2of4-int8-int8", "sparse-2of4-int8-int8 has a word twice"),
        ("sparse", "unknown variant 'sparse'; did you mean 'sparse-2of4'"),
    ],
)
def test_name_of_an_impossible_variant_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variant_named(name)


def test_fine_tuned_variant_needs_a_run_or_is_one_shot(tmp_path: Path) -> None:
    material = VariantInputs(tmp_path / "model.onnx", BATCHES)
    assert "name sparse-2of4-oneshot" in VARIANTS["sparse-2of4"].lacks(material)
    assert not variant_named("sparse-2of4-oneshot").lacks(material)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "-int8"])
def test_one_shot_variant_prunes_a_file(exported: Export, tmp_path: Path, ending: str) -> None:
    variant = variant_named(f"sparse-unstructured-50{ending}-oneshot")
    made = variant.make(VariantInputs(exported.path, BATCHES), tmp_path / "sparse.onnx")
    assert made.about["density"] == pytest.approx(0.5, abs=0.01)
    assert made.about["bytes_without_zeros"] < model_bytes(made.model)
    expected, found = (outputs_of(file, BATCHES) for file in (exported.path, made.model))
    plain = variant_named(f"sparse-unstructured-50-magnitude{ending}-oneshot")
    rival = outputs_of(
        plain.make(VariantInputs(exported.path, BATCHES), tmp_path / "plain.onnx").model, BATCHES
    )
    assert np.square(found - expected).mean() < np.square(rival - expected).mean()
    weights = [
        numpy_helper.to_array(tensor)
        for tensor in onnx.load(made.model).graph.initializer
        if len(tensor.dims) > 1 and tensor.data_type in (1, 3)
    ]
    assert sum(np.count_nonzero(w) for w in weights) < 0.7 * sum(w.size for w in weights)


@pytest.mark.slow
def test_structure_that_fits_no_layer_is_refused(exported: Export, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no layer of the network can have .* block64x64"):
        variant_named("sparse-block64x64-oneshot").make(
            VariantInputs(exported.path, BATCHES), tmp_path / "sparse.onnx"
        )
