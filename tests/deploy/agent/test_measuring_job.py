import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy import TimingSettings
from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.protocol import read_object
from hwnas.errors import ArtifactError, ConfigError

ASKED = MeasuringRequest("0f" * 32, "cpu-onnxruntime-fp32-b1-t1")
JOB = MeasuringJob({"one": ASKED, "two": ASKED}, TimingSettings())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def test_measuring_job_round_trips_through_json() -> None:
    assert MeasuringJob.from_json(json.loads(json.dumps(JOB.to_json()))) == JOB
    assert JOB.models == [ASKED.model]


@pytest.mark.slow
@given(subjects=ANYTHING, settings=ANYTHING)
def test_measuring_job_from_any_json_is_refused_or_within_limits(
    subjects: Any, settings: Any
) -> None:
    whole = JOB.to_json()
    for damaged in (
        {**whole, "subjects": subjects},
        {**whole, "settings": settings},
        {**whole, "subjects": {"one": subjects}},
        {**whole, "settings": {**whole["settings"], "rounds": subjects}},
    ):
        with contextlib.suppress(ConfigError):
            made = MeasuringJob.from_json(damaged)
            assert 1 <= made.settings.rounds <= 10_000


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("rounds", 10**9, "at most 10000"),
        ("rounds", 1.5, "expected a number"),
        ("warmup", True, "expected a number"),
        ("max_seconds", 1e9, "at most 600"),
        ("max_seconds", 10**400, "float"),
        ("round_ms", "5", "expected a number"),
        ("retries", -1, "retries -1"),
    ],
)
def test_measuring_job_refuses_settings_beyond_its_limits(
    setting: str, value: Any, told: str
) -> None:
    job = JOB.to_json()
    with pytest.raises(ConfigError, match=told):
        MeasuringJob.from_json({**job, "settings": {**job["settings"], setting: value}})


def test_timing_request_refuses_wrong_models_and_targets() -> None:
    for model in ("../../etc/passwd", "0f" * 31, "0F" * 32, 7):
        with pytest.raises(ConfigError, match="64 hexadecimal digits"):
            MeasuringRequest(model, ASKED.target)  # type: ignore[arg-type]
    for target in ("gpu", "cpu-onnxruntime-fp32-b0-t1", None):
        with pytest.raises(ConfigError, match="target"):
            MeasuringRequest(ASKED.model, target)  # type: ignore[arg-type]


def test_measuring_job_limits_the_number_and_names_of_networks() -> None:
    with pytest.raises(ConfigError, match="1 to 512"):
        MeasuringJob({str(n): ASKED for n in range(513)}, TimingSettings())
    with pytest.raises(ConfigError, match="1 to 512"):
        MeasuringJob({}, TimingSettings())
    with pytest.raises(ConfigError, match="at most 200"):
        MeasuringJob({"x" * 201: ASKED}, TimingSettings())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"quantity": "weight"}, "expected one of latency, energy, peak_memory, cold_start"),
        ({"quantity": ["energy"]}, "the quantity is"),
        ({"quantity": "energy", "repeats": 21}, "from 0 to 20"),
        ({"quantity": "energy", "repeats": True}, "repeats is True"),
        ({"quantity": "energy", "repeats": -1}, "repeats is -1"),
    ],
)
def test_measuring_job_refuses_unknown_quantities(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MeasuringJob.from_json({**JOB.to_json(), **more})
    memory = replace(JOB, quantity="peak_memory", repeats=2)
    assert MeasuringJob.from_json(json.loads(json.dumps(memory.to_json()))) == memory


def test_measuring_job_refuses_names_that_are_not_utf8() -> None:
    with pytest.raises(ConfigError, match=r"a name is .*UTF-8"):
        MeasuringJob.from_json(json.loads(json.dumps(JOB.to_json()).replace("one", r"\ud800")))
    whole = json.loads(json.dumps(JOB.to_json()).replace("one", r"\ud83d\ude00"))
    assert "😀" in MeasuringJob.from_json(whole).subjects


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"a": NaN}', b'{"a": 1e', b"[" * 100_000, b"\xff", b"9" * 10_000]
)
def test_read_object_refuses_anything_but_a_json_object(text: bytes) -> None:
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_object(text)


def test_job_state_refuses_damaged_json() -> None:
    whole = JobState("waiting", 3).to_json()
    assert JobState.from_json(whole) == JobState("waiting", 3)
    for damaged in ({}, {**whole, "state": "lost"}, {**whole, "measurements": {"one": {}}}):
        with pytest.raises(ArtifactError):
            JobState.from_json(damaged)
