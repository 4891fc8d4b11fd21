"""Metrics of super-resolution are those of the literature."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import correlate1d

from hwnas.deploy.io import Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.super_resolution import (
    SuperResolution,
    luma,
    structural_similarity,
    super_resolution,
)

TASK = SuperResolution(Preprocessing(16, 16, 3, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)), 2)


def outputs_for(pictures: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a network that makes these pictures, uint8 (N, H, W, C)."""
    mean, std = (torch.tensor(each) for each in (TASK.preprocessing.mean, TASK.preprocessing.std))
    return ((pictures.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def noise(seed: int, n: int = 2, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, side, side, 3), generator=generator, dtype=torch.uint8)


def test_perfect_picture_has_the_largest_values_and_no_loss() -> None:
    pictures = noise(0)
    found = TASK.statistics(outputs_for(pictures), pictures)
    assert found["ssim"].tolist() == pytest.approx([1, 1])
    assert found["psnr_db"].tolist() == pytest.approx([20 * math.log10(255 * math.sqrt(12))] * 2)
    assert TASK.loss(outputs_for(pictures), pictures).item() == pytest.approx(0, abs=1e-6)


@given(seed=st.integers(0, 99), shift=st.integers(1, 40))
def test_psnr_of_a_brighter_grey_picture_follows_from_the_difference(seed: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    grey = torch.randint(0, 200, (1, 32, 32, 1), generator=generator, dtype=torch.uint8)
    pictures = grey.expand(-1, -1, -1, 3).contiguous()
    found = TASK.statistics(outputs_for(pictures + shift), pictures)["psnr_db"].item()
    # The luma of grey has a range of 219 levels.
    assert found == pytest.approx(20 * math.log10(255 / (shift * 219 / 255)), abs=1e-4)


def test_scores_ignore_the_border_and_clip_colours() -> None:
    pictures = noise(1)
    outputs = outputs_for(pictures)
    outputs[:, :, :2] = 0
    outputs[:, :, :, -2:] = 0
    whole = TASK.statistics(outputs, pictures)
    assert whole["ssim"].tolist() == pytest.approx([1, 1])
    white = torch.full_like(pictures, 255)
    found = TASK.statistics(outputs_for(white) * 10, white)["psnr_db"]
    assert found.min() > 58, "brighter than white is white"


def test_luma_of_primary_colours_is_that_of_the_standard() -> None:
    colours = torch.eye(3)[:, :, None, None]
    wanted = [(65.481 + 16) / 255, (128.553 + 16) / 255, (24.966 + 16) / 255]
    assert luma(colours).flatten().tolist() == pytest.approx(wanted)
    assert luma(torch.ones(1, 3, 1, 1)).item() == pytest.approx(235 / 255)
    grey = torch.rand(2, 1, 3, 3)
    assert luma(grey).equal(grey)


def test_structural_similarity_equals_its_definition() -> None:
    """Compared with SciPy's separable filter, for places where the window lies inside."""
    rng = np.random.default_rng(0)
    x = rng.random((24, 20))
    y = (x + rng.normal(0, 0.1, x.shape)).clip(0, 1)
    weights = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()

    def mean(values: np.ndarray) -> np.ndarray:
        filtered = correlate1d(correlate1d(values, weights, 0), weights, 1)
        return filtered[5:-5, 5:-5]

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    wanted = ((2 * mx * my + 1e-4) * (2 * cov + 9e-4)) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
    pair = [torch.from_numpy(each)[None, None] for each in (x, y)]
    assert structural_similarity(*pair).item() == pytest.approx(wanted.mean(), abs=1e-9)
    small = [each[:, :, :4, :7] for each in pair]
    assert 0 < structural_similarity(*small).item() < 1


def test_metrics_of_a_split_are_means_over_its_pictures() -> None:
    pictures, others = noise(2, 6), noise(3, 6)
    collected = SplitMetrics(TASK)
    for rows in torch.arange(6).tensor_split(2):
        collected.add(outputs_for(others[rows]), pictures[rows])
    each = TASK.statistics(outputs_for(others), pictures)
    found = collected.values()
    for name, values in each.items():
        assert found[name].value == pytest.approx(values.mean().item())
        assert found[name].standard_error == pytest.approx(values.std().item() / 6**0.5)


def test_task_takes_size_and_colours_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    data = load_data(DataConfig("painted:pictures"), tmp_path, 0, tmp_path)
    task = super_resolution(data, metrics=["ssim"])
    assert (task.upscale, task.outputs, task.metrics[0].name) == (2, 3, "ssim")
    assert task.meaning.scale == data.channel_std
    with pytest.raises(ConfigError, match=r"unknown task.metrics 'psnr'; did you mean 'psnr_db'"):
        super_resolution(data, metrics=["psnr"])
    digits = load_data(DataConfig("digits"), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match=r"super-resolution needs pictures.*are classes"):
        super_resolution(digits)
