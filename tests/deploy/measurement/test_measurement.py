import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy import Measurement, Quantiles
from hwnas.errors import ArtifactError


def test_measurement_round_trips_through_json(measurement: Measurement) -> None:
    data = json.loads(json.dumps(measurement.to_json()))
    assert Measurement.from_json(data) == measurement
    assert (data["kind"], data["unit"], data["latency_ms"]) == ("measured", "ms", 1.0)


def test_measurement_reads_older_json_without_conditions(measurement: Measurement) -> None:
    older = {k: v for k, v in measurement.to_json().items() if k != "conditions"}
    assert Measurement.from_json(older) == measurement
    hot = replace(measurement, conditions={"temperature_c": "81.0"})
    assert Measurement.from_json(hot.to_json()).conditions == {"temperature_c": "81.0"}


def test_measurement_latency_follows_the_clock(measurement: Measurement) -> None:
    assert measurement.latency_ms == 1.0
    assert replace(measurement, clock="wall").latency_ms == 1.4


def test_measurement_is_hashable(measurement: Measurement) -> None:
    assert len({measurement, replace(measurement), replace(measurement, n=3)}) == 2


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_quantiles_are_ordered(times: list[float]) -> None:
    found = Quantiles.of(times)
    assert min(times) <= found.p20 <= found.p50 <= found.p80 <= max(times)


def test_measurement_refuses_damaged_json(measurement: Measurement) -> None:
    whole = measurement.to_json()
    for damaged in (
        [],
        {**whole, "schema": 2},
        {k: v for k, v in whole.items() if k != "wall_ms"},
        {**whole, "cpu_ms": {"p20": 1}},
        {**whole, "cpu_ms": 3},
    ):
        with pytest.raises(ArtifactError, match="measurement"):
            Measurement.from_json(damaged)  # type: ignore[arg-type]
