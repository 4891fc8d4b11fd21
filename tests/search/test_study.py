from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from hwnas.errors import RunError, StorageError
from hwnas.search import SearchOptions, StudyStorage, run_search
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers import make_sampler
from hwnas.search.study.search_study import SearchStudy

OBJECTIVES = [Objective("accuracy", "maximize"), Objective("params", "minimize", limit=3)]
HERE = Path(__file__).parent


def opened(path: Path | None, name: str = "search", sampler: str = "random") -> SearchStudy:
    return SearchStudy(name, OBJECTIVES, lambda known: make_sampler(sampler, known, {}), path)


def filled(path: Path | None, trials: int = 6, name: str = "search") -> SearchStudy:
    """Return a study whose trials overlap; every third one is pruned at once."""
    study = opened(path, name)
    waiting = []
    for i in range(trials):
        trial = study.ask()
        width = trial.suggest_categorical("width", (1, 2, 3))
        gate = trial.suggest_categorical("gate", ("yes", "no"))
        trial.set_user_attr("about", {"width": width, "gate": gate})
        if i % 3 == 1:
            study.tell(trial, None)
        else:
            trial.set_constraint("params", width - 2.0)
            waiting.append((trial, width))
    for trial, width in waiting:
        study.tell(trial, [width / 10, width])
    return study


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def visible(trial: FrozenTrial) -> dict[str, object]:
    """Return the fields of a trial that a user sees."""
    names = ("number", "state", "values", "params", "distributions", "user_attrs", "constraints")
    return {name: getattr(trial, name) for name in (*names, "datetime_complete", "system_attrs")}


class TestStudyOnDisk:
    def test_is_an_ordinary_optuna_study(self, tmp_path: Path) -> None:
        study = filled(tmp_path / "study.db")
        plain = optuna.load_study(study_name="search", storage=url(tmp_path / "study.db"))
        assert [visible(t) for t in plain.trials] == [visible(t) for t in study.trials]
        assert [t.number for t in plain.trials] == list(range(6))
        assert [d.name.lower() for d in plain.directions] == ["maximize", "minimize"]
        assert [t.params["width"] for t in plain.best_trials]
        assert plain.metric_names == ["accuracy", "params"]
        study.close()

    def test_can_be_continued_by_plain_optuna(self, tmp_path: Path) -> None:
        filled(tmp_path / "study.db").close()
        plain = optuna.load_study(study_name="search", storage=url(tmp_path / "study.db"))
        trial = plain.ask()
        trial.suggest_categorical("width", (1, 2, 3))
        plain.tell(trial, [0.5, 1])
        again = opened(tmp_path / "study.db")
        assert [t.number for t in again.trials] == list(range(7))
        again.close()

    def test_can_be_reopened_and_extended(self, tmp_path: Path) -> None:
        first = filled(tmp_path / "study.db")
        first.close()
        second = filled(tmp_path / "study.db")
        assert [visible(t) for t in second.trials[:6]] == [visible(t) for t in first.trials]
        assert [t.number for t in second.trials] == list(range(12))
        assert len(second.complete) == 8
        second.close()

    def test_keeps_a_write_ahead_log(self, tmp_path: Path) -> None:
        study = filled(tmp_path / "study.db")
        with sqlite3.connect(tmp_path / "study.db") as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
        study.close()

    def test_stores_a_finished_trial_at_once(self, tmp_path: Path) -> None:
        study = opened(tmp_path / "study.db")
        for i in range(3):
            trial = study.ask({"width": 2})
            trial.suggest_categorical("width", (1, 2, 3))
            study.tell(trial, [0.1, 2])
            reader = optuna.load_study(study_name="search", storage=url(tmp_path / "study.db"))
            assert [t.params for t in reader.trials] == [{"width": 2}] * (i + 1)
        study.close()

    @pytest.mark.slow
    def test_shares_its_file_with_another_study(self, tmp_path: Path) -> None:
        one, two = filled(tmp_path / "study.db"), filled(tmp_path / "study.db", 3, "random")
        one.tell(one.ask(), [0.1, 1])
        one.close()
        two.close()
        again = [opened(tmp_path / "study.db", name) for name in ("search", "random")]
        assert [[t.number for t in s.trials] for s in again] == [[*range(7)], [*range(3)]]
        assert [t.params for t in again[1].trials] == [t.params for t in two.trials]
        for study in again:
            study.close()

    def test_is_shown_by_optuna_dashboard(self, tmp_path: Path) -> None:
        import optuna_dashboard

        study = filled(tmp_path / "study.db")
        study.close()
        app = optuna_dashboard.wsgi(optuna.storages.RDBStorage(url(tmp_path / "study.db")))
        [summary] = fetch(app, "/api/studies")["study_summaries"]
        assert summary["study_name"] == "search"
        assert summary["directions"] == ["maximize", "minimize"]
        trials = fetch(app, f"/api/studies/{summary['study_id']}", "after=0")["trials"]
        assert [t["number"] for t in trials] == list(range(6))
        assert [t["state"] for t in trials] == ["Complete", "Pruned", "Complete"] * 2
        shown = {p["name"]: p["param_external_value"] for p in trials[0]["params"]}
        assert shown == {name: str(value) for name, value in study.trials[0].params.items()}


def fetch(app: Callable[..., list[bytes]], path: str, query: str = "") -> dict[str, list[dict]]:
    environment: dict[str, object] = {"PATH_INFO": path, "QUERY_STRING": query}
    setup_testing_defaults(environment)
    status = []
    body = io.BytesIO()
    for part in app(environment, lambda line, headers, error=None: status.append(line)):
        body.write(part)
    assert status[0].startswith("200"), (status, body.getvalue())
    return json.loads(body.getvalue())


def test_study_in_memory_equals_one_on_disk(tmp_path: Path) -> None:
    on_disk, in_memory = filled(tmp_path / "study.db"), filled(None)
    on_disk.close()
    in_memory.close()
    assert [t.params for t in in_memory.trials] == [t.params for t in on_disk.trials]
    assert [t.state for t in in_memory.complete] == [TrialState.COMPLETE] * 4


class TestStudyChecks:
    @pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0 and no more"])
    def test_refuses_a_file_with_other_content(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "study.db"
        path.write_bytes(content * 40)
        self.assert_refused(path)
        assert path.read_bytes() == content * 40

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_refuses_a_truncated_file(self, tmp_path: Path, share: float) -> None:
        path = tmp_path / "study.db"
        filled(path, 30).close()
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        self.assert_refused(path)

    def test_refuses_a_file_with_zeros_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "study.db"
        filled(path, 30).close()
        content = bytearray(path.read_bytes())
        content[4096:-4096] = bytes(len(content) - 8192)
        path.write_bytes(content)
        self.assert_refused(path)

    def test_refuses_damaged_json(self, tmp_path: Path) -> None:
        path = tmp_path / "study.db"
        filled(path).close()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE trial_params SET distribution_json = '{]'")
        connection.close()
        self.assert_refused(path)

    def test_refuses_a_database_of_a_newer_optuna(self, tmp_path: Path) -> None:
        path = tmp_path / "study.db"
        filled(path).close()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
        connection.close()
        self.assert_refused(path)

    def test_refuses_the_objectives_in_another_order(self, tmp_path: Path) -> None:
        filled(tmp_path / "study.db").close()
        self.assert_of_other_objectives(
            tmp_path / "study.db",
            OBJECTIVES[::-1],
            "the same in another order; it has accuracy (maximize) and params (minimize), the "
            "recipe has params (minimize) and accuracy (maximize)",
        )

    @pytest.mark.parametrize(
        ("objectives", "difference"),
        [
            (
                [Objective("accuracy", "maximize"), Objective("macs", "minimize")],
                "it has params (minimize), the recipe has macs (minimize)",
            ),
            (
                [
                    Objective("accuracy", "maximize"),
                    Objective("latency_ms", "minimize", "a-target"),
                ],
                "it has params (minimize), the recipe has latency_ms@a-target (minimize)",
            ),
            ([Objective("accuracy", "maximize")], "it has params (minimize) in addition"),
            (
                [*OBJECTIVES, Objective("macs", "minimize")],
                "the recipe has macs (minimize) in addition",
            ),
        ],
    )
    def test_error_names_the_difference_of_the_objectives(
        self, tmp_path: Path, objectives: list[Objective], difference: str
    ) -> None:
        filled(tmp_path / "study.db").close()
        self.assert_of_other_objectives(tmp_path / "study.db", objectives, difference)

    def test_accepts_another_limit(self, tmp_path: Path) -> None:
        filled(tmp_path / "study.db").close()
        others = [replace(o, limit=9) for o in OBJECTIVES]
        study = SearchStudy(
            "search", others, lambda known: make_sampler("random", 0, {}), tmp_path / "study.db"
        )
        assert len(study.trials) == 6
        study.close()

    def test_compares_directions_if_a_study_has_no_objective_names(self, tmp_path: Path) -> None:
        """Older versions of hwnas made studies without names of objectives."""
        path = tmp_path / "study.db"
        filled(path).close()
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM study_system_attributes")
        connection.close()
        opened(path).close()
        self.assert_of_other_objectives(
            path, OBJECTIVES[::-1],
            "it has maximize and minimize, the recipe has minimize and maximize",
        )  # fmt: skip

    def assert_of_other_objectives(
        self, path: Path, objectives: list[Objective], difference: str
    ) -> None:
        with pytest.raises(RunError) as caught:
            SearchStudy("search", objectives, lambda known: make_sampler("random", 0, {}), path)
        assert str(caught.value) == (
            f"{path}: study 'search' has other objectives: {difference}; `hwnas resume "
            f"{path.parent}` searches for the new objectives and reuses the existing evaluations"
        )

    def assert_refused(self, path: Path) -> None:
        with pytest.raises(RunError, match=r"study\.db is not a readable Optuna study \(.+\)") as e:
            opened(path)
        assert "\n" not in str(e.value)


def test_study_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*study\.db"):
        opened(tmp_path / "file" / "study.db")


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_study import filled
from hwnas.errors import StorageError
path = Path({path!r})
if {before}:
    study = filled(path, {before})
size = max(each.stat().st_size for each in path.parent.iterdir()) if {before} else 0
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))
try:
    if {before}:
        for _ in range(1000):
            trial = study.ask()
            trial.set_user_attr("big", "x" * 1000)
            study.tell(trial, [1, 1])
    else:
        filled(path)
except StorageError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 5])
def test_study_reports_a_full_disk_and_loses_no_trial(tmp_path: Path, before: int) -> None:
    path = tmp_path / "run" / "study.db"
    script = FULL_DISK.format(here=str(HERE), path=str(path), before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot write {path}: ")
    assert done.stdout.count("\n") == 1
    assert "Free some space or make the file writable, then run `hwnas resume`" in done.stdout
    again = filled(path)
    assert len(again.complete) >= 4 + before // 2
    assert [t.number for t in again.trials] == list(range(len(again.trials)))
    again.close()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from own_parts import Dials, Slow
from hwnas.search import Objective, SearchCallbacks, SearchOptions, StudyStorage, run_search
run_search(
    Dials(), [Objective("accuracy", "maximize"), Objective("params", "minimize")], Slow(),
    SearchOptions(trials=200), storage=StudyStorage(Path({path!r})),
    callbacks=SearchCallbacks(lambda trial, complete: print(trial.candidate.id, flush=True)),
)
"""


@pytest.mark.slow
def test_study_loses_no_finished_trial_if_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE)
    from own_parts import Dials, EvenDials

    path = tmp_path / "study.db"
    script = KILLED.format(here=str(HERE), path=str(path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    finished = [process.stdout.readline().strip() for _ in range(30)]
    os.kill(process.pid, signal.SIGKILL)
    finished += process.stdout.read().split()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    assert 30 <= len(finished) < 200
    plain = optuna.load_study(study_name="search", storage=url(path))
    complete = [t for t in plain.trials if t.state is TrialState.COMPLETE]
    assert [t.user_attrs["candidate"] for t in complete][: len(finished)] == finished
    evaluator = EvenDials()
    objectives = [Objective("accuracy", "maximize"), Objective("params", "minimize")]
    result = run_search(
        Dials(), objectives, evaluator, SearchOptions(60), storage=StudyStorage(path)
    )
    assert [t.candidate.id for t in result.trials][: len(complete)] == [
        t.user_attrs["candidate"] for t in complete
    ]
    assert evaluator.asked == 60 - len(complete)


def test_study_passes_options_to_a_users_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    study = SearchStudy(
        "search", OBJECTIVES, lambda known: make_sampler("own_parts:stubborn", 0, {"option": 2})
    )
    assert study.ask().suggest_categorical("width", (1, 2, 3)) == 3
