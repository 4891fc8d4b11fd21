"""Job queue of the agent, with workers that the tests provide."""

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.deploy import TimingSettings
from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server.job_queue import JobQueue
from hwnas.deploy.agent.server.model_store import MissingModel
from hwnas.errors import ConfigError, DeviceError

ASKED = MeasuringRequest("0f" * 32, "cpu-onnxruntime-fp32-b1-t1")


def job(name: str) -> MeasuringJob:
    return MeasuringJob({name: ASKED}, TimingSettings())


def new_id() -> str:
    return uuid.uuid4().hex


class Worker:
    """Worker that finishes every job at once, except one that it never finishes."""

    def __init__(self, never: str = "") -> None:
        self.did: list[str] = []
        self.never = never
        self.began = threading.Event()

    def __call__(
        self, todo: MeasuringJob, progress: Callable[[float], None], stop: threading.Event
    ) -> JobState | None:
        [name] = todo.subjects
        self.began.set()
        if name == self.never:
            progress(0.5)
            stop.wait(10)
            return None
        self.did.append(name)
        return JobState("done")


def work(queue: JobQueue, worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=queue.work, args=(worker,))
    thread.start()
    return thread


def finished(queue: JobQueue, ids: list[str]) -> list[str]:
    states = [queue.state(id_, 10.0) for id_ in ids]
    return [state.state if state else "unknown" for state in states]


def test_queue_runs_each_job_once_in_order(tmp_path: Path) -> None:
    queue, worker = JobQueue(tmp_path, AgentLimits()), Worker()
    ids = [new_id() for _ in range(5)]
    for number, id_ in enumerate(ids):
        assert queue.submit(id_, job(str(number))) == JobState("waiting", ahead=number)
        assert queue.submit(id_, job(str(number))).ahead == number, "sent again"
    assert queue.needed() == {ASKED.model}
    thread = work(queue, worker)
    assert finished(queue, ids) == ["done"] * 5
    assert queue.submit(ids[0], job("0")).state == "done", "sent again when it is over"
    queue.close()
    thread.join()
    assert worker.did == ["0", "1", "2", "3", "4"]
    assert not queue.needed()


def test_queue_continues_after_the_agent_was_killed(tmp_path: Path) -> None:
    first, stuck = JobQueue(tmp_path, AgentLimits()), Worker(never="b")
    ids = [new_id() for _ in range(3)]
    for name, id_ in zip("abc", ids, strict=True):
        first.submit(id_, job(name))
    thread = work(first, stuck)
    first.state(ids[0], 10.0)
    while (state := first.state(ids[1])) is None or state.share != 0.5:
        time.sleep(0.01)
    # After a kill, only the files are left.
    second, worker = JobQueue(tmp_path, AgentLimits()), Worker()
    assert [getattr(second.state(id_), "state", None) for id_ in ids] == [
        "done", "waiting", "waiting",
    ]  # fmt: skip
    other = work(second, worker)
    assert finished(second, ids) == ["done"] * 3
    assert worker.did == ["b", "c"], "what was done is not done again"
    for queue, running in ((first, thread), (second, other)):
        queue.close()
        running.join()


def test_queue_keeps_the_running_job_when_it_closes(tmp_path: Path) -> None:
    queue, id_ = JobQueue(tmp_path, AgentLimits()), new_id()
    queue.submit(id_, job("b"))
    worker = Worker(never="b")
    thread = work(queue, worker)
    assert worker.began.wait(10)
    queue.close()
    thread.join()
    assert JobQueue(tmp_path, AgentLimits()).state(id_) == JobState("waiting")


def test_queue_gives_up_a_job_that_ended_the_agent_five_times(tmp_path: Path) -> None:
    id_ = new_id()
    JobQueue(tmp_path, AgentLimits()).submit(id_, job("b"))
    for _ in range(5):
        queue = JobQueue(tmp_path, AgentLimits())
        following = queue._next()
        assert following is not None
        queue._write(queue._path(id_), following[1], following[2])  # then the agent is killed
    queue, worker = JobQueue(tmp_path, AgentLimits()), Worker()
    thread = work(queue, worker)
    state = queue.state(id_, 10.0)
    queue.close()
    thread.join()
    assert state is not None
    assert state.state == "failed"
    assert "5 times" in state.failure["message"]
    assert not worker.did


def test_queue_drops_waiting_and_running_jobs(tmp_path: Path) -> None:
    queue, worker = JobQueue(tmp_path, AgentLimits()), Worker(never="b")
    running, waiting = new_id(), new_id()
    queue.submit(running, job("b"))
    queue.submit(waiting, job("a"))
    thread = work(queue, worker)
    assert worker.began.wait(10)
    assert queue.drop(waiting)
    assert queue.drop(running)
    assert not queue.drop(running)
    queue.close()
    thread.join()
    assert not worker.did
    assert not list(tmp_path.iterdir())


def test_queue_refuses_wrong_ids_and_too_many_jobs(tmp_path: Path) -> None:
    queue, id_ = JobQueue(tmp_path, replace(AgentLimits(), waiting=1)), new_id()
    queue.submit(id_, job("a"))
    with pytest.raises(ConfigError, match="belongs to another job"):
        queue.submit(id_, job("b"))
    with pytest.raises(DeviceError, match="wait already"):
        queue.submit(new_id(), job("b"))
    for wrong in ("", "../x", "0" * 33):
        with pytest.raises(ConfigError, match="32 hexadecimal digits"):
            queue.submit(wrong, job("b"))
        assert queue.state(wrong) is None


def test_queue_removes_the_oldest_results(tmp_path: Path) -> None:
    queue, worker = JobQueue(tmp_path, replace(AgentLimits(), kept=3)), Worker()
    thread = work(queue, worker)
    ids = [new_id() for _ in range(5)]
    for id_ in ids:
        queue.submit(id_, job("a"))
        queue.state(id_, 10.0)
    queue.close()
    thread.join()
    assert [queue.state(id_) is None for id_ in ids] == [True, True, False, False, False]
    assert len(list(tmp_path.iterdir())) == 3


def test_queue_renames_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / f"{new_id()}.json").write_text("{")
    queue = JobQueue(tmp_path, AgentLimits())
    assert len(queue) == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".damaged"]


def test_queue_drops_a_job_whose_model_is_missing(
    tmp_path: Path,
) -> None:
    queue, id_ = JobQueue(tmp_path, AgentLimits()), new_id()
    queue.submit(id_, job("a"))

    def has_no_model(*arguments: object) -> JobState | None:
        raise MissingModel("damaged")

    thread = threading.Thread(target=queue.work, args=(has_no_model,))
    thread.start()
    assert queue.state(id_, 10.0) is None
    queue.close()
    thread.join()
    assert not list(tmp_path.iterdir())


def test_queue_continues_after_an_unexpected_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, ids = JobQueue(tmp_path, AgentLimits()), [new_id(), new_id()]
    for id_, name in zip(ids, "ab", strict=True):
        queue.submit(id_, job(name))

    def fails_once(
        todo: MeasuringJob, progress: Callable[[float], None], stop: threading.Event
    ) -> JobState | None:
        if "a" in todo.subjects:
            raise ZeroDivisionError("unforeseen")
        return JobState("done")

    thread = threading.Thread(target=queue.work, args=(fails_once,))
    thread.start()
    assert finished(queue, ids) == ["failed", "done"]
    assert "ZeroDivisionError" in capsys.readouterr().err
    queue.close()
    thread.join()


def test_queue_accepts_a_job_again_whose_result_is_damaged(tmp_path: Path) -> None:
    queue, id_ = JobQueue(tmp_path, AgentLimits()), new_id()
    queue.submit(id_, job("a"))
    thread = work(queue, Worker())
    assert finished(queue, [id_]) == ["done"]
    (tmp_path / f"{id_}.json").write_text('{"schema": 1, "job"')
    assert queue.state(id_) is None
    assert queue.submit(id_, job("a")).state == "waiting", "it can be sent again"
    assert finished(queue, [id_]) == ["done"]
    queue.close()
    thread.join()
