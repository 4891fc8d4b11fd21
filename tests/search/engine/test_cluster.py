from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from hwnas.errors import ConfigError, DivergedError
from hwnas.search.engine.cluster import local_ray, map_tasks, started_beside


def scaled(factor: int, value: int) -> int:
    return factor * value


def refusing(factor: int, value: int) -> int:
    raise DivergedError(value, 0.1)


def where(shared: None) -> int:
    return os.getpid()


def test_map_tasks_returns_results_in_order_without_ray() -> None:
    assert list(map_tasks(scaled, 3, [(1,), (2,)], 2)) == [3, 6]


@pytest.mark.slow
@pytest.mark.ray
def test_map_tasks_runs_in_other_processes_in_order_with_ray(ray_session: None) -> None:
    assert list(map_tasks(scaled, 3, [(i,) for i in range(5)], 2)) == [0, 3, 6, 9, 12]
    assert set(map_tasks(where, None, [()] * 2, 0)) == {os.getpid()}, "no workers, no Ray"
    assert os.getpid() not in set(map_tasks(where, None, [()] * 2, 2))


@pytest.mark.slow
@pytest.mark.ray
def test_map_tasks_raises_the_original_error_of_a_task(ray_session: None) -> None:
    with pytest.raises(DivergedError, match="at step 4 ") as caught:
        list(map_tasks(refusing, 3, [(4,)], 2))
    assert type(caught.value) is DivergedError


def writing(folder: Path, seconds: float) -> None:
    (folder / "begun").touch()
    time.sleep(seconds)
    (folder / "ended").write_text(str(os.getpid()))


def writing_when_allowed(folder: Path) -> None:
    (folder / "begun").touch()
    while not (folder / "allowed").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    (folder / "ended").write_text(str(os.getpid()))


def begun(folder: Path) -> None:
    while not (folder / "begun").exists():
        time.sleep(0.01)


def fail_once_begun(folder: Path) -> None:
    begun(folder)
    raise KeyError("of the block")


@pytest.mark.slow
@pytest.mark.ray
def test_started_beside_runs_during_the_block_and_is_waited_for(
    ray_session: None, tmp_path: Path
) -> None:
    with started_beside(writing_when_allowed, tmp_path):
        begun(tmp_path)
        assert list(map_tasks(scaled, 3, [(1,)], 2)) == [3], "the other CPU is free"
        (tmp_path / "allowed").touch()
        assert not (tmp_path / "ended").exists()
    assert int((tmp_path / "ended").read_text()) != os.getpid()


@pytest.mark.slow
@pytest.mark.ray
def test_started_beside_is_cancelled_by_an_error_and_hides_its_own(
    ray_session: None, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(KeyError), started_beside(writing, tmp_path, 60.0):
        fail_once_begun(tmp_path)
    with started_beside(refusing, 3, 4):
        pass
    assert time.monotonic() - started < 30
    assert not (tmp_path / "ended").exists()


def test_started_beside_calls_nothing_without_ray(tmp_path: Path) -> None:
    if ray.is_initialized():
        pytest.skip("an earlier test has started Ray in this process")
    with started_beside(writing, tmp_path, 0.0):
        pass
    assert not list(tmp_path.iterdir())


STARTS_AND_ENDS = """
import os
before = dict(os.environ)
from hwnas.search.engine.cluster import _SETTINGS, local_ray, map_tasks
import ray
from pathlib import Path

def imports(shared):
    import only_there
    return only_there.answer

with local_ray(1, [Path({folder!r})]):
    assert ray.is_initialized()
    with local_ray(7):
        assert ray.cluster_resources()["CPU"] == 1
    assert ray.is_initialized()
    assert list(map_tasks(imports, None, [()], 2)) == [42]
assert not ray.is_initialized()
changed = {{k for k in before | os.environ if before.get(k) != os.environ.get(k)}}
print("changed:", sorted(changed & set(_SETTINGS)))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_local_ray_starts_quietly_and_restores_the_environment(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("answer = 42\n")
    script = STARTS_AND_ENDS.format(folder=str(tmp_path))
    elsewhere = {"RAY_ADDRESS": "127.0.0.1:1"}  # a cluster that no argument selects
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **elsewhere},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "changed: []\n"
    assert done.stderr == ""


def test_local_ray_refuses_a_python_with_a_space_in_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise Ray would wait for its workers for ever."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(sys, "executable", "/my projects/.venv/bin/python")
    with pytest.raises(ConfigError, match="there is a space in its path"), local_ray(1):
        pass
