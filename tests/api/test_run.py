"""Runs as Python objects."""

import csv
import shutil
from pathlib import Path

import pytest

import hwnas
from hwnas.deploy import Target
from hwnas.errors import ConfigError, InfeasibleError, RunError, StorageError

TARGET = "cpu-onnxruntime-fp32-b1-t1"


def test_front_has_the_rows_of_the_table(finished: Path) -> None:
    run = hwnas.open(finished)
    with (finished / "front.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row.id for row in run.front] == [row["id"] for row in table]
    assert [row.id for row in run.finalists] == [row["id"] for row in table if row["bundle"]]
    assert run.front[0].macs == int(table[0]["macs"])
    assert len(run.front[:1]) == 1


def test_front_as_frame_has_the_columns_of_the_table(finished: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = hwnas.open(finished).front.to_frame()
    written = pandas.read_csv(finished / "front.csv")
    assert set(frame) == set(written)
    assert frame["macs"].tolist() == written["macs"].tolist()


@pytest.mark.slow
def test_best_network_is_exported_as_a_verified_bundle(finished: Path, tmp_path: Path) -> None:
    run = hwnas.open(finished)
    network = run.best("most-accurate")
    assert network.row is not None
    assert network.row.test == max(row.test for row in run.finalists if row.test is not None)
    bundle = network.export(tmp_path / "model")
    bundle.verify()
    assert bundle.description["id"] == network.id
    with pytest.raises(StorageError, match="exists already"):
        network.export(tmp_path / "model")


def test_wrong_picks_are_refused(finished: Path) -> None:
    run = hwnas.open(finished)
    with pytest.raises(ConfigError, match="'kneee' is not a network of this run; did you mean"):
        run.best("kneee")
    with pytest.raises(InfeasibleError, match="no finalist takes at most"):
        run.best(max_latency_ms=1e-9)
    with pytest.raises(RunError, match="has no results for cpu-onnxruntime-fp32-b8-t1"):
        run.best(target="cpu-onnxruntime-fp32-b8-t1")


@pytest.mark.slow
def test_notebook_shows_run_and_front(finished: Path) -> None:
    run = hwnas.open(finished)
    assert repr(run) == f"<Run tiny in {finished}: finished, 12 trials>"
    shown = run._repr_html_()
    assert shown.count("<tr>") == len(run.front) + 1
    assert run.front[0].id in shown


@pytest.mark.slow
def test_plot_is_the_figure_of_the_report(finished: Path) -> None:
    figure = hwnas.open(finished).plot()
    assert {trace.name.split(" (")[0] for trace in figure.data} >= {"Pareto front"}


@pytest.mark.slow
def test_report_is_written_again(finished: Path) -> None:
    run = hwnas.open(finished)
    assert run.report == finished / "report.html"
    (finished / "report.html").unlink()
    with pytest.raises(RunError, match="is not finished"):
        _ = hwnas.open(finished).result
    assert len(hwnas.open(finished).front) > 0  # as `hwnas front`, also of an unfinished run
    written = hwnas.open(finished).rewrite_report().read_text(encoding="utf-8")
    assert all(row.id in written for row in run.finalists)


def test_finalist_of_a_run_is_predicted_measured_and_compared(
    finished: Path, tmp_path: Path
) -> None:
    run = hwnas.open(finished)
    network = run.best()
    assert network.bundle.description["id"] == network.id
    [latency, *_] = hwnas.predict(network, Target.parse(TARGET))
    assert latency.estimate.mean > 0
    assert hwnas.predict(network.bundle.folder, TARGET)[0].estimate == latency.estimate
    exported = hwnas.export(run, tmp_path / "bundle")
    assert exported.description["id"] == network.id
    shutil.copytree(finished, tmp_path / "other")
    found = hwnas.compare([run, tmp_path / "other"])
    assert [each.trials for each in found.runs] == [12, 12]


def test_finalist_is_written_for_servers_and_browsers(finished: Path, tmp_path: Path) -> None:
    network = hwnas.open(finished).best()
    model = hwnas.model_repository(network, tmp_path / "models", name="digits")
    assert (model / "config.pbtxt").is_file()
    assert model == tmp_path / "models" / "digits"
    with pytest.raises(ConfigError, match="onnxruntime-web"):
        hwnas.web_page(network, tmp_path / "page", runtime_files=tmp_path)
    assert not (tmp_path / "page").exists()


def test_open_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        hwnas.open(tmp_path)


def test_open_refuses_an_object_for_a_name_of_the_recipe(finished: Path) -> None:
    run = hwnas.open(finished, evaluator=hwnas.Evaluator)
    with pytest.raises(ConfigError, match="the recipe names its evaluator, 'supernet'"):
        _ = run.front


def test_finished_run_is_shown_where_it_was_moved(finished: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(finished, tmp_path / "elsewhere"))
    assert len(hwnas.open(moved).front) > 0
