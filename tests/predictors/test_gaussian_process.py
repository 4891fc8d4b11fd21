from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from hwnas.predictors.models.gaussian_process import (
    Mixture,
    Parts,
    Prior,
    covariances,
    likeliest,
    means,
)


def parts(x: np.ndarray, z: np.ndarray) -> Parts:
    return Parts({"line": x}, {"bump": z})


def drawn(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 3)), rng.standard_normal((rows, 2))


def test_mixture_of_one_draw_equals_the_textbook_posterior() -> None:
    (x, z), (xq, zq) = drawn(0, 12), drawn(1, 7)
    y = x[:, 0] + np.sin(z[:, 0])
    theta = np.array([0.3, -0.4, -3.0])
    ours = Mixture(parts(x, z), y, 1.0, theta[None])

    line, bump, noise = np.exp(theta)
    k = line * x @ x.T + bump * RBF()(z) + 100 + (noise + 1e-8) * np.eye(12)
    kq = line * xq @ x.T + bump * RBF()(zq, z) + 100
    mean = y.mean() + kq @ np.linalg.solve(k, y - y.mean())
    own = line * (xq**2).sum(1) + bump + 100 + noise
    std = np.sqrt(own - np.einsum("qn,nq->q", kq, np.linalg.solve(k, kq.T)))
    found = ours.predict(parts(xq, zq))
    np.testing.assert_allclose(found[0], mean, atol=1e-6)
    np.testing.assert_allclose(found[1], std, atol=1e-6)


def test_likeliest_hyperparameters_agree_with_scikit_learn() -> None:
    x, z = drawn(2, 60)
    rng = np.random.default_rng(3)
    y = x @ [0.5, -0.2, 0.1] + 0.05 * rng.standard_normal(60)
    y = (y - y.mean()) / y.std()
    flat = Prior(np.array([-1.0, -3.0, -4.0]), np.full(3, 1e3))
    only_line = Parts({"line": x}, {})
    line, noise = np.exp(likeliest(only_line, y, Prior(flat.mean[[0, 2]], flat.std[[0, 2]])))
    kernel = ConstantKernel(1.0) * DotProduct(1e-5, "fixed") + ConstantKernel(100.0, "fixed")
    reference = GaussianProcessRegressor(kernel + WhiteKernel(0.01), n_restarts_optimizer=3).fit(
        x, y
    )
    found = np.exp(reference.kernel_.theta)
    assert line == pytest.approx(found[0], rel=0.02)
    assert noise == pytest.approx(found[1], rel=0.02)
    # A part that explains nothing gets almost no variance.
    theta = likeliest(parts(x, z), y, flat)
    assert np.exp(theta[1]) < 0.02 * np.exp(theta[0])


def test_mixture_of_draws_has_the_moments_of_its_processes() -> None:
    (x, z), (xq, zq) = drawn(8, 9), drawn(9, 6)
    y, thetas = x[:, 0] + 0.1 * z[:, 0], Prior.vague(2).draws(8)
    mixture = Mixture(parts(x, z), y, 1.0, thetas)
    kept = mixture._solved[1]
    alone = [Mixture(parts(x, z), y, 1.0, theta[None]).predict(parts(xq, zq)) for theta in kept]
    mean = sum(w * m for w, (m, _) in zip(mixture.weights, alone, strict=True))
    second = sum(w * (s**2 + m**2) for w, (m, s) in zip(mixture.weights, alone, strict=True))
    found = mixture.predict(parts(xq, zq))
    np.testing.assert_allclose(found[0], mean, atol=1e-6)
    np.testing.assert_allclose(found[1], np.sqrt(second - mean**2), atol=1e-6)


def test_means_equal_those_of_each_process() -> None:
    (x, z), (xq, zq) = drawn(10, 9), drawn(11, 7)
    shared, other = parts(x, z), parts(*drawn(12, 5))
    thetas = Prior.vague(2).draws(4)
    processes = [
        Mixture(shared, x[:, 0], 1.0, thetas[:1]),
        Mixture(other, np.arange(5.0), 2.0, thetas[1:2]),
        Mixture(shared, 5 + z[:, 1], 0.5, thetas),
    ]
    found = means(processes, parts(xq, zq))
    for column, process in zip(found.T, processes, strict=True):
        np.testing.assert_allclose(column, process.predict(parts(xq, zq))[0], atol=1e-9)


def test_surprise_equals_the_leave_one_out_error() -> None:
    x, z = drawn(13, 12)
    y, theta = x[:, 0] + 0.1 * z[:, 0], Prior.vague(2).draws(1)
    process = Mixture(parts(x, z), y - y.mean(), 1.0, theta)
    errors, stds = [], []
    for i in range(12):
        kept = np.delete(np.arange(12), i)
        others = Mixture(parts(x, z).rows(kept), process.observed[kept], 1.0, theta)
        mean, std = others.predict(parts(x, z).rows([i]))
        errors.append(process.observed[i] - mean[0])
        stds.append(std[0])
    np.testing.assert_allclose(process.left_out[0], errors, rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(process.left_out[1], stds, rtol=0.02)
    ratio = np.mean(np.abs(errors) / stds)
    assert process.surprise == pytest.approx(ratio / np.sqrt(2 / np.pi), rel=0.02)
    assert process.doubt == pytest.approx(np.exp(np.mean(np.log(stds))), rel=0.02)


def test_mixture_weights_draws_by_how_well_they_fit() -> None:
    x, z = drawn(4, 30)
    y = np.sin(2 * z[:, 0])
    bump, line = np.array([-9.0, 0.5, -4.0]), np.array([0.5, -9.0, -4.0])
    mixture = Mixture(parts(x, z), y, 1.0, np.array([bump, line]))
    np.testing.assert_allclose(mixture.theta, bump, atol=0.01)


def test_mixture_prediction_is_independent_of_the_unit() -> None:
    (x, z), (xq, zq) = drawn(5, 10), drawn(6, 4)
    y = x[:, 0]
    thetas = Prior.vague(2).draws(16)
    one = Mixture(parts(x, z), y, 1.0, thetas).predict(parts(xq, zq))
    other = Mixture(parts(x, z), 1000 * y + 5, 1000.0, thetas).predict(parts(xq, zq))
    np.testing.assert_allclose(other[0], 1000 * one[0] + 5, rtol=1e-6)
    np.testing.assert_allclose(other[1], 1000 * one[1], rtol=1e-6)


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
def test_mixture_uncertainty_never_grows_with_more_observations(seed: int) -> None:
    (x, z), (xq, zq) = drawn(seed, 9), drawn(seed + 1, 5)
    y, theta = x[:, 0], Prior.vague(2).draws(4)[:1]
    few = Mixture(parts(x, z).rows(range(5)), y[:5], 1.0, theta)
    all_ = Mixture(parts(x, z), y, 1.0, theta)
    queries = parts(xq, zq)
    assert (
        all_.predict(queries, noise=False)[1] <= few.predict(queries, noise=False)[1] + 1e-9
    ).all()
    assert (all_.predict(queries)[1] >= all_.predict(queries, noise=False)[1]).all()


def test_prior_draws_are_repeatable_with_its_mean_and_spread() -> None:
    prior = Prior(np.array([-2.0, 0.0, -5.0]), np.array([0.5, 1.0, 2.0]))
    draws = prior.draws(512)
    np.testing.assert_array_equal(draws, prior.draws(512))
    np.testing.assert_allclose(draws.mean(0), prior.mean, atol=0.05)
    np.testing.assert_allclose(draws.std(0), prior.std, rtol=0.05)


def test_covariances_have_the_variances_on_their_diagonal() -> None:
    own = parts(*drawn(7, 6))
    assert len(own) == 6
    np.testing.assert_allclose(
        np.diagonal(covariances(own, own), axis1=1, axis2=2), own.variances, atol=1e-12
    )


def test_vague_prior_drops_about_half_of_the_parts() -> None:
    drawn = Prior.vague(6).draws(256)[:, :-1]
    absent = drawn == drawn.min()
    assert 0.4 < absent.mean() < 0.6
    assert (drawn[~absent] > drawn.min()).all()
    assert (Prior(np.zeros(7), np.ones(7)).draws(64) > drawn.min()).all()


def test_prior_with_vague_parts_keeps_the_known_parts() -> None:
    known = Prior(np.array([1.0, 2.0, 3.0, -4.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    wider = known.with_vague([2, 3])
    assert wider.mean[[0, 1, 3, 5]].tolist() == known.mean.tolist()
    assert wider.std[[0, 1, 3, 5]].tolist() == known.std.tolist()
    vague = Prior.vague(1)
    assert wider.mean[[2, 4]].tolist() == [vague.mean[0]] * 2
    assert wider.std[[2, 4]].tolist() == [vague.std[0]] * 2
