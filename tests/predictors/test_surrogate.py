from __future__ import annotations

import numpy as np
import pytest

from hwnas.predictors.models.gaussian_process import Parts, covariances
from hwnas.predictors.models.surrogate import Surrogate


def parts(features: np.ndarray) -> Parts:
    """Return a linear and a radial part of all columns, and uninformative parts of noise."""
    nothing = np.sin(1e4 * features)
    return Parts(
        {"all": features, "nothing": nothing}, {"all radial": features, "nothing radial": nothing}
    )


def case(count: int, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)) / 3**0.5
    y = 5 + 40 * x[:, 0] - 10 * x[:, 1] + 10 * np.sin(3 * x[:, 2])
    return x, y + noise * rng.normal(size=count)


def test_surrogate_learns_a_function_with_calibrated_intervals() -> None:
    x, y = case(60)
    asked, true = case(500, seed=1)
    mean, deviation = Surrogate.fitted(parts(x), y).predict(parts(asked))
    assert np.abs(mean - true).mean() < 0.1 * true.std()
    inside = np.abs(mean - true) < 1.645 * deviation
    assert 0.75 < inside.mean() <= 1.0


def test_surrogate_error_and_deviation_fall_with_more_observations() -> None:
    asked, true = case(200, seed=1)
    errors, doubts = [], []
    for count in (15, 60, 200):
        x, y = case(count)
        mean, deviation = Surrogate.fitted(parts(x), y).predict(parts(asked))
        errors.append(np.abs(mean - true).mean())
        doubts.append(deviation.mean())
    assert errors[0] > errors[1] > errors[2]
    assert doubts[0] > doubts[1] > doubts[2]


def test_surrogate_separates_noise_from_the_function() -> None:
    x, y = case(150, noise=8.0)
    found = Surrogate.fitted(parts(x), y)
    assert 4.0 < found.noise**0.5 < 12.0
    quiet = Surrogate.fitted(parts(x), case(150)[1])
    assert quiet.noise < found.noise / 10


def test_surrogate_is_deterministic() -> None:
    x, y = case(40)
    first, again = (Surrogate.fitted(parts(x), y).predict(parts(x[:5])) for _ in range(2))
    assert np.array_equal(first, again)


def test_surrogate_reuses_hyperparameters_of_an_earlier_fit() -> None:
    x, y = case(60)
    early = Surrogate.fitted(parts(x[:30]), y[:30])
    late = Surrogate.fitted(parts(x), y, early.draws)
    assert np.array_equal(late.variances, early.variances)
    asked, true = case(100, seed=1)
    assert np.abs(late.predict(parts(asked))[0] - true).mean() < 0.15 * true.std()


def test_surrogate_prediction_is_independent_of_the_unit() -> None:
    x, y = case(40)
    asked = parts(case(10, seed=1)[0])
    mean, deviation = Surrogate.fitted(parts(x), y).predict(asked)
    large = Surrogate.fitted(parts(x), 1e6 * y + 3).predict(asked)
    assert large[0] == pytest.approx(1e6 * mean + 3, rel=1e-6)
    assert large[1] == pytest.approx(1e6 * deviation, rel=1e-6)


def test_surrogate_predicts_a_constant_from_constant_observations() -> None:
    x, _ = case(20)
    mean, deviation = Surrogate.fitted(parts(x), np.full(20, 7.0)).predict(parts(x * 3))
    assert mean == pytest.approx(np.full(20, 7.0), abs=1e-6)
    assert (deviation < 1e-6).all()


def test_surrogate_joint_covariances_agree_with_single_deviations() -> None:
    x, y = case(40, noise=1.0)
    found, asked = Surrogate.fitted(parts(x), y), parts(case(12, seed=1)[0])
    mean, deviation = found.predict(asked)
    both = found.joint_from(covariances(asked, found.parts), covariances(asked, asked))
    assert both[0] == pytest.approx(mean)
    assert np.diag(both[1]) == pytest.approx(deviation**2, rel=1e-6, abs=1e-9)
    assert np.linalg.eigvalsh(both[1]).min() > -1e-6


def test_surrogate_prediction_from_one_draw_resembles_the_full_one() -> None:
    x, y = case(30, noise=5.0)
    found, asked = Surrogate.fitted(parts(x), y), parts(case(20, seed=1)[0])
    cross = covariances(asked, found.parts)
    mean, _ = found.predict_from(cross, asked.variances, 1)
    assert (np.diff(found.weights) <= 0).all()
    assert np.corrcoef(mean, found.predict(asked)[0])[0, 1] > 0.9
