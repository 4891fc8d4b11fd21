from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.deploy.serve.metrics import Counter, Gauge, Histogram, render

Read = Callable[[str], dict[Any, float]]
keep_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NONE: frozenset[tuple[str, str]] = frozenset()


@keep_fixture
@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 9))))
def test_counter_labels_round_trip_any_text(exposition: Read, seen: list[tuple[str, int]]) -> None:
    counter = Counter("seen_total", "A \\ and a\nline.", ("what",))
    for text, amount in seen:
        counter.add(amount, text)
    samples = exposition(render([counter]))
    assert sum(samples.values()) == sum(amount for _, amount in seen)
    assert len(samples) == len({text for text, _ in seen})


@keep_fixture
@given(st.lists(st.floats(0, 100)))
def test_histogram_counts_values_up_to_each_bound(exposition: Read, values: list[float]) -> None:
    histogram = Histogram("took_seconds", "Time.", (0.5, 1, 50))
    for value in values:
        histogram.observe(value)
    samples = exposition(render([histogram]))
    for bound in ("0.5", "1", "50"):
        below = sum(value <= float(bound) for value in values)
        assert samples["took_seconds_bucket", frozenset({("le", bound)})] == below
    assert samples["took_seconds_sum", NONE] == pytest.approx(sum(values))


def test_counter_starts_at_zero_and_gauge_reads_its_current_value(
    exposition: Read,
) -> None:
    counter, level = Counter("images_total", "Images."), [1.0]
    page = [counter, Gauge("queue", "Waiting.", lambda: level[0], {"model": 'a"b'})]
    gauge = ("queue", frozenset({("model", 'a"b')}))
    assert exposition(render(page)) == {("images_total", NONE): 0, gauge: 1}
    counter.add(3)
    level[0] = 2.5
    assert exposition(render(page)) == {("images_total", NONE): 3, gauge: 2.5}
