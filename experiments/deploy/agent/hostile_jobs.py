"""Jobs that request more from an agent than it may do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hwnas.deploy import TimingSettings
from hwnas.deploy.agent.signing import digest_of

__all__ = ["hostile_jobs", "plain_job"]

_TARGET = "cpu-onnxruntime-fp32-b1-t1"
_HUGE = 10**400
_SHORT = TimingSettings(warmup=1, rounds=3, round_ms=1.0, max_seconds=0.1, retries=0)


def plain_job(model: str) -> dict[str, Any]:
    """Return a valid job within the limits, for a model given by its SHA-256."""
    return {
        "subjects": {"network": {"model": model, "target": _TARGET}},
        "settings": asdict(_SHORT),
    }


def hostile_jobs(content: bytes) -> dict[str, dict[str, Any]]:
    """Return jobs that must be refused or must fail, though their model is valid and known."""
    model = digest_of(content)

    def with_settings(**settings: Any) -> dict[str, Any]:
        job = plain_job(model)
        return {**job, "settings": {**job["settings"], **settings}}

    def with_target(target: str) -> dict[str, Any]:
        return {**plain_job(model), "subjects": {"network": {"model": model, "target": target}}}

    asked = plain_job(model)["subjects"]["network"]
    names = {
        "no networks": [],
        "a name that is no text": ["\ud800"],
        "a name of a megabyte": ["n" * 900_000],
        "more networks than may be": [str(i) for i in range(5000)],
    }
    return {
        "a billion rounds": with_settings(rounds=10**9),
        "more rounds than a number holds": with_settings(rounds=_HUGE, warmup=_HUGE),
        "years": with_settings(max_seconds=1e9, round_ms=1e12),
        "less than nothing": with_settings(max_seconds=-1.0, rounds=-5),
        "a million retries": with_settings(retries=10**6),
        "patience without end": with_settings(patience_s=1e9),
        "all that may be asked for": with_settings(
            warmup=1000, rounds=10_000, round_ms=1e4, max_seconds=600, retries=10
        ),
        "a million images at once": with_target("cpu-onnxruntime-fp32-b999999-t1"),
        "a million threads": with_target("cpu-onnxruntime-fp32-b1-t999999"),
        "a machine elsewhere": with_target("pi5-onnxruntime-fp32-b1-t1"),
        "a path for a model": plain_job("../../key"),
        **{
            what: {**plain_job(model), "subjects": dict.fromkeys(each, asked)}
            for what, each in names.items()
        },
    }
