"""Process that measures: it limits its resources, checks the models, measures them and ends.

It reads ``job.json`` in the current folder, prints its progress, and writes ``result.json``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.atomic import write_json
from hwnas.deploy.agent.measured_model import check_model
from hwnas.deploy.agent.measuring_job import LATENCY, JobState, MeasuringJob
from hwnas.deploy.agent.protocol import refusal
from hwnas.deploy.agent.server.sandbox import JOB, RESULT
from hwnas.errors import DeviceError, HwnasError

if TYPE_CHECKING:
    from hwnas.deploy.measurement.measurement import TimedNetwork

__all__ = ["main"]

_AGENT_IS_GONE = 3


def main() -> None:
    """Do the job in the current folder."""
    threading.Thread(target=_end_with_the_agent, daemon=True).start()
    task = json.loads(Path(JOB).read_text(encoding="utf-8"))
    _limit(task["limits"])
    try:
        state = _measured(MeasuringJob.from_json(task["job"]))
    except HwnasError as error:
        state = JobState("failed", failure=refusal(0, error).body)
    except MemoryError:
        state = _failed("the job needs more memory than the agent allows; send smaller networks")
    except Exception as error:  # a runtime may raise anything
        state = _failed(f"{type(error).__name__}: {error}")
    write_json(Path(RESULT), state.to_json())
    os._exit(0)  # do not wait for threads of a runtime


def _failed(message: str) -> JobState:
    return JobState("failed", failure=refusal(0, DeviceError(message)).body)


def _end_with_the_agent() -> None:
    """End the process when the agent, which holds the other end of standard input, is gone."""
    while os.read(0, 1):
        pass
    os._exit(_AGENT_IS_GONE)


def _limit(limits: dict[str, int]) -> None:
    import resource

    for name, most in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _measured(job: MeasuringJob) -> JobState:
    from hwnas.deploy.measurement.measurement import TimedNetwork
    from hwnas.deploy.measurement.timing import measure_together
    from hwnas.deploy.targets.target import Target

    tell = _telling()
    for model in job.models:
        check_model(_file(model))
    subjects = {
        name: TimedNetwork(_file(asked.model), Target.parse(asked.target))
        for name, asked in job.subjects.items()
    }
    if job.quantity == LATENCY:
        return JobState("done", measurements=measure_together(subjects, job.settings, tell))
    readings = {}
    for done, (name, subject) in enumerate(subjects.items(), start=1):
        readings[name] = _reading(job.quantity, subject, job.repeats)
        tell(done / len(subjects))
    return JobState("done", readings=readings)


def _reading(quantity: str, subject: TimedNetwork, repeats: int) -> dict[str, Any]:
    """Measure another quantity of one network, and return it as a JSON object."""
    if quantity == "energy":
        from hwnas.deploy.measurement.energy import measured_energy

        return measured_energy(subject.model, subject.target).to_json()
    if quantity == "peak_memory":
        from hwnas.deploy.measurement.memory import peak_memory

        return peak_memory(subject.model, subject.target, repeats or 3).to_json()
    from hwnas.deploy.measurement.cold_start import cold_start

    return cold_start(subject.model, subject.target, repeats or 5).to_json()


def _file(model: str) -> Path:
    """Return a relative path, so that messages do not show the folders of this machine."""
    return Path(f"{model}.onnx")


def _telling(step: float = 0.02) -> Callable[[float], None]:
    """Return a function that prints progress, in steps of at least ``step``."""
    reported = -step

    def tell(share: float) -> None:
        nonlocal reported
        if share >= reported + step:
            reported = share
            print(f"{share:.3f}", flush=True)

    return tell


if __name__ == "__main__":
    main()
