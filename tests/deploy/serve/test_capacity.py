"""Simulated latencies of a server under load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.deploy.serve.capacity import ServiceTimes, simulated_ms
from hwnas.deploy.serve.service import BatchSettings
from hwnas.errors import ConfigError

ONE = BatchSettings(1, 0.0, 1)
TIMES = st.builds(
    ServiceTimes,
    st.fixed_dictionaries({1: st.floats(1, 10), 4: st.floats(10, 30), 8: st.floats(30, 60)}),
    st.floats(0, 1),
)
BATCHING = st.builds(BatchSettings, st.integers(1, 8), st.floats(0, 10), st.just(1))


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.8])
def test_mean_latency_is_that_of_a_queue_with_a_fixed_service_time(busy: float) -> None:
    """Pollaczek-Khinchine for M/D/1: service time times 1 + busy / (2 (1 - busy))."""
    found = simulated_ms(ServiceTimes({1: 5.0}, 0.0), ONE, 200 * busy, cores=2, requests=200_000)
    assert found.mean() == pytest.approx(5 * (1 + busy / (2 * (1 - busy))), rel=0.03)


@settings(max_examples=30)
@given(TIMES, BATCHING, st.floats(1, 60))
def test_latency_is_at_least_that_of_an_idle_server(
    times: ServiceTimes, batching: BatchSettings, per_second: float
) -> None:
    found = simulated_ms(times, batching, per_second, cores=2, requests=2000)
    assert (found >= times.idle_ms - 1e-6).all()


@settings(max_examples=30)
@given(TIMES, BATCHING, st.floats(1, 60), st.sampled_from((0.5, 2.0, 4.0)))
def test_faster_machine_has_proportionally_lower_latencies(
    times: ServiceTimes, batching: BatchSettings, per_second: float, speed: float
) -> None:
    """If the load, too, comes so many times as fast, and requests wait for a batch as shorter.

    Speeds are powers of two, with which times are exact: of two events at the same time, rounding
    could put either first.
    """
    slow = simulated_ms(times, batching, per_second, cores=2, requests=2000)
    quick = BatchSettings(batching.max_batch, batching.max_wait_ms / speed, 1)
    fast = simulated_ms(times.on(speed), quick, per_second * speed, cores=2, requests=2000)
    np.testing.assert_allclose(fast * speed, slow, rtol=1e-6, atol=1e-6)


@settings(max_examples=10)
@given(st.floats(0.5, 2), st.floats(0, 0.9), st.floats(0, 3), st.floats(20, 150))
def test_fitted_times_explain_the_latencies_of_a_light_load(
    request_ms: float, spread: float, delay_ms: float, per_second: float
) -> None:
    known = ServiceTimes({1: 0.5, 8: 3.0}, request_ms)
    true = replace(known, request_spread=spread, delay_ms=delay_ms)
    measured = simulated_ms(true, ONE, per_second, cores=2, requests=20_000, seed=1)
    p50, p99 = np.quantile(measured, (0.5, 0.99)).tolist()
    fitted = known.fitted(per_second, p50, p99)
    again = simulated_ms(fitted, ONE, per_second, cores=2)
    assert np.quantile(again, (0.5, 0.99)) == pytest.approx((p50, p99), rel=0.05)
    assert fitted.request_ms == request_ms
    assert fitted.delay_ms == pytest.approx(delay_ms, abs=0.2)


def test_fitted_times_of_latencies_that_nothing_explains_have_no_delay() -> None:
    fitted = ServiceTimes({1: 5.0}, 1.0).fitted(20, 2.0, 2.0)
    assert (fitted.request_spread, fitted.delay_ms) == (pytest.approx(0, abs=0.001), 0)


def test_batches_carry_a_load_that_single_images_cannot() -> None:
    times = ServiceTimes({1: 5.0, 8: 10.0}, 0.1)
    alone = np.quantile(simulated_ms(times, ONE, 300, cores=2), 0.99)
    batched = np.quantile(simulated_ms(times, BatchSettings(8, 0.0, 1), 300, cores=2), 0.99)
    assert alone > 1000
    assert batched < 30


def test_server_that_cannot_keep_up_is_infinitely_late() -> None:
    times = ServiceTimes({1: 0.1}, 5.0)
    assert np.isinf(simulated_ms(times, ONE, 201, cores=2)).all()
    assert np.isfinite(simulated_ms(times, ONE, 150, cores=2)).all()


def test_network_is_slower_where_the_server_has_no_core_of_its_own() -> None:
    times = ServiceTimes({1: 5.0}, 1.0)
    one, two = (simulated_ms(times, ONE, 100, cores=cores).mean() for cores in (1, 2))
    assert one > 1.05 * two


@pytest.mark.parametrize(
    ("network", "request_ms"), [({2: 1.0}, 0.1), ({1: -1.0}, 0.1), ({1: float("nan")}, 0.1)]
)
def test_unusable_times_are_refused(network: dict[int, float], request_ms: float) -> None:
    with pytest.raises(ConfigError, match="expected finite times"):
        ServiceTimes(network, request_ms)
