from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.search.tasks.delta_method import function_of_means


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_standard_error_of_a_mean_equals_the_usual_formula(scores: list[float]) -> None:
    found = function_of_means(dict, {"score": torch.tensor(scores, dtype=torch.float64)})["score"]
    assert found.value == pytest.approx(np.mean(scores), abs=1e-9)
    assert found.standard_error == pytest.approx(
        np.std(scores, ddof=1) / len(scores) ** 0.5, abs=1e-9
    )


def ratio(means: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"ratio": (means["part"] / means["whole"]).mean()}


def test_standard_error_of_a_ratio_equals_that_of_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(20, 200, (400, 3)).astype(float)
    part = whole * rng.beta(8, 3, (400, 3))
    found = function_of_means(ratio, {"part": torch.tensor(part), "whole": torch.tensor(whole)})
    draws = rng.integers(0, 400, (2000, 400))
    drawn = (part[draws].sum(1) / whole[draws].sum(1)).mean(1)
    assert found["ratio"].standard_error == pytest.approx(drawn.std(), rel=0.1)


def test_standard_error_ignores_unused_statistics() -> None:
    used = {"part": torch.rand(9), "whole": 1 + torch.rand(9)}
    more = function_of_means(ratio, {**used, "other": torch.rand(9, 4, 4)})["ratio"]
    assert more.standard_error == function_of_means(ratio, used)["ratio"].standard_error


def test_standard_error_of_one_image_is_nan() -> None:
    found = function_of_means(dict, {"score": torch.tensor([0.25])})["score"]
    assert found.value == 0.25
    assert math.isnan(found.standard_error)


def test_standard_error_of_a_difference_is_that_of_the_differences_of_images() -> None:
    torch.manual_seed(0)
    one, other = torch.rand(40), torch.rand(40)
    found = function_of_means(dict, {"one": one, "other": other, "less": one - other})
    difference = found["one"] - found["other"]
    assert difference.value == pytest.approx(found["less"].value)
    assert difference.standard_error == pytest.approx(found["less"].standard_error)
