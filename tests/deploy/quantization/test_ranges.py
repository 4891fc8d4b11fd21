"""Ranges of activations that int8 quantisation covers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.deploy.quantization.quantize import Int8Quantizer, quantize_int8
from hwnas.deploy.quantization.ranges import RANGES, Activation, activations
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError

BATCHES = [np.random.default_rng(i).standard_normal((8, 3, 8, 8), dtype=np.float32) for i in (0, 1)]


def of(values: np.ndarray) -> Activation:
    return Activation(float(values.min()), float(values.max()), values.astype(np.float32))


def error(values: np.ndarray, low: float, high: float, power: float) -> float:
    step = (high - low) / 255
    zero = round(-low / step)
    rounded = (np.clip(np.round(values / step) + zero, 0, 255) - zero) * step
    return float((np.abs(rounded - values) ** power).mean())


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 2.0]), st.floats(-3, 3))
def test_fitted_range_lies_in_the_full_range_with_no_larger_error(
    seed: int, power: float, shift: float
) -> None:
    values = np.random.default_rng(seed).standard_t(3, 5000) + shift
    low, high = of(values).fitted(power)
    least, most = of(values).full()
    assert least <= low <= 0 <= high <= most
    # The fit sees a histogram, which differs from the values by half a bin.
    assert error(values, low, high, power) <= 1.02 * error(values, least, most, power)


def test_fitted_range_ignores_one_outlier() -> None:
    values = np.append(np.random.default_rng(0).uniform(-1, 1, 100_000), 10.0)
    low, high = of(values).fitted(2.0)
    assert low == pytest.approx(-1, abs=0.05)
    assert high < 10
    assert of(values).fitted(1.0)[1] <= high


@pytest.mark.parametrize("name", RANGES)
def test_ranges_of_zeros_are_empty(name: str) -> None:
    assert RANGES[name](of(np.zeros(10))) == (0, 0)


class Gated(nn.Module):
    """Network with a hard swish after one convolution and a hard sigmoid after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(8 * self.first(images))
        return self.head((x * nn.functional.hardsigmoid(8 * self.gate(x))).mean((2, 3)))


def test_activations_are_cut_where_the_next_operator_saturates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = export_onnx(Gated(), (3, 8, 8), tmp_path / "plain.onnx", traceable=True).path
    with Int8Quantizer(plain, BATCHES, ["full"]) as quantizer:
        seen, outputs = activations(quantizer.prepared, BATCHES)
    np.testing.assert_allclose(outputs, outputs_of(plain, BATCHES), atol=1e-5)
    ends = [(round(each.least, 3), round(each.most, 3)) for each in seen.values()]
    assert (-3.03, 3.03) in ends, "before the hard sigmoid"
    assert any(low == -3.03 and high > 4 for low, high in ends), "before the hard swish"


def test_quantizer_chooses_the_range_with_the_smallest_output_error(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Gated()
    plain = export_onnx(network, (3, 8, 8), tmp_path / "plain.onnx", traceable=True).path
    far = [batch.copy() for batch in BATCHES]
    far[0][0, 0, 0, 0] = 300.0  # one pixel that makes the full range useless
    expected, errors = outputs_of(plain, far), {}
    for name in RANGES:
        made = quantize_int8(plain, tmp_path / f"{name}.onnx", far, [name])
        errors[name] = float(np.square(outputs_of(made, far) - expected).mean())
    with Int8Quantizer(plain, far) as quantizer:
        assert quantizer.ranges == min(errors, key=errors.__getitem__)
    assert len(set(errors.values())) == len(RANGES)


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    plain = export_onnx(Gated(), (3, 8, 8), tmp_path / "plain.onnx", traceable=True).path
    endless = [np.full_like(BATCHES[0], 1e38)]
    with pytest.raises(ArtifactError, match=r"cannot be quantised to int8: values of .* infinite"):
        quantize_int8(plain, tmp_path / "int8.onnx", endless)
