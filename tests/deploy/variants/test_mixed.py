"""Partial int8 quantisation: units of a network, and those that stay in floating point."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from hwnas.deploy import Export
from hwnas.deploy.export.to_onnx import relative_error
from hwnas.deploy.quantization.quantize import Int8Quantizer
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.variants.mixed import mixed_int8, sensitivities
from hwnas.deploy.variants.sweep import outputs_of

BATCHES = [np.random.default_rng(i).standard_normal((8, 1, 8, 8), dtype=np.float32) for i in (0, 1)]


def difference(exported: Export, path: Path) -> float:
    found = outputs_of(path, BATCHES)
    return relative_error(found, outputs_of(exported.path, BATCHES))


@pytest.mark.slow
def test_sensitivities_rank_every_layer_with_weights(exported: Export, tmp_path: Path) -> None:
    graph = onnx.load(exported.path).graph
    layers = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    with Int8Quantizer(exported.path, BATCHES) as quantizer:
        units = quantizer.units
        alone = quantizer.write(tmp_path / "alone.onnx", only=units[:1])
        none = quantizer.write(tmp_path / "none.onnx", without=units)
        ranked = sensitivities(exported.path, quantizer, BATCHES)
    assert sum(len(unit.nodes) == 1 and unit.name == unit.nodes[0] for unit in units) >= len(layers)
    assert number_format(none) == "fp32"
    assert difference(exported, none) < 1e-5
    assert difference(exported, alone) > 1e-5
    assert {each.unit for each in ranked} == set(units)
    errors = [each.error for each in ranked]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "kept"), [(1.0, 0), (0.0, None)])
def test_mixed_int8_keeps_few_layers_in_floating_point(
    exported: Export, tmp_path: Path, limit: float, kept: int | None
) -> None:
    tried: list[float] = []

    def loss(path: Path) -> float:
        tried.append(difference(exported, path))
        return tried[-1] if tried[-1] > 1e-5 else 0.0

    left_out = mixed_int8(exported.path, tmp_path / "mixed.onnx", BATCHES, loss, limit)
    found = difference(exported, tmp_path / "mixed.onnx")
    assert found <= max(limit, 1e-5)
    if kept is not None:
        assert len(left_out) == kept
    assert len(tried) <= 6  # bisection needs few attempts
