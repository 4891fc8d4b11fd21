"""Whole runs with real components: results, resuming, further targets, export, own parts."""

import csv
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import onnx
import optuna
import pytest
import torch
from safetensors.torch import load_file

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.errors import ConfigError, InfeasibleError, RunError, StorageError
from hwnas.experiment import Experiment
from hwnas.plugin import resolve
from hwnas.predictors import DeviceStore
from hwnas.progress import make_reporter
from hwnas.stages.measurements import read_measurements
from hwnas.stages.results.run_result import RunResult

TARGET = "cpu-onnxruntime-fp32-b1-t1"
OTHER_TARGET = "cpu-onnxruntime-fp32-b8-t1"
QUIET = make_reporter(quiet=True)


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of all files except the lock and the log."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in ("lock", "log.jsonl"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "front.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scores(folder: Path) -> list[list[str]]:
    lines = (folder / "scores.jsonl").read_text().splitlines()
    return [json.loads(line)["key"] for line in lines]


def events(folder: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(row["event"], row.get("stage", "")) for row in rows]


def edit(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


# Results


def test_run_folder_contains_all_results_and_finished_stages(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "recipe.toml",
        "run.json",
        "study.db",
        "scores.jsonl",
        "supernet",
        "measurements.parquet",
        "front.csv",
        "bundles",
        "report.html",
        "log.jsonl",
    }
    assert not [path for path in finished.rglob("*.tmp")]
    stages = json.loads((finished / "run.json").read_text())["stages"]
    assert list(stages) == [f"calibrate@{TARGET}", "train", "search", "finalists", "report"]
    assert {stage["state"] for stage in stages.values()} == {"done"}
    assert all(stage["cpu_s"] > 0 for stage in stages.values())
    told = [pair for pair in events(finished) if pair[0] != "note"]
    assert told == [(event, name) for name in stages for event in ("stage", "done")]


def test_run_study_can_be_loaded_by_optuna(finished: Path) -> None:
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{finished / 'study.db'}")
    done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    assert len(done) == 12
    assert len({t.user_attrs["candidate"] for t in done}) == 12
    assert {key[0] for key in scores(finished)} == {t.user_attrs["candidate"] for t in done}


def test_run_bundles_verify_and_describe_their_networks(finished: Path) -> None:
    bundles = [Bundle.load(path) for path in sorted((finished / "bundles").iterdir())]
    assert len(bundles) == 3
    for bundle in bundles:
        assert all(check.ok for check in bundle.verify())
        onnx.checker.check_model(bundle.onnx_file, full_check=True)
        described = bundle.description
        assert described["provenance"]["seed"] == 0
        assert described["labels"] == list("0123456789")
        assert bundle.measurements[0].target == TARGET
        splits = {row.get("split"): row for row in described["metrics"] if "split" in row}
        assert splits["test"]["n"] == 200
        low, high = splits["test"]["interval"]
        assert low < splits["test"]["value"] < high
        assert {row["kind"] for row in described["predictions"]} == {"predicted"}


def test_front_table_agrees_with_study_and_bundles(finished: Path) -> None:
    rows = rows_of(finished)
    accuracy = [float(row["accuracy"]) for row in rows]
    latency = [float(row[f"latency_ms@{TARGET}"]) for row in rows]
    finalists = [row for row in rows if row["bundle"]]
    assert len(finalists) == 3
    for row in finalists:
        bundle = Bundle.load(finished / row["bundle"])
        assert float(row["measured_latency_ms"]) == bundle.measurements[0].latency_ms
        assert row["id"] == bundle.architecture.id
    assert all(row["measured_latency_ms"] == "" for row in rows if not row["bundle"])
    assert {name for row in rows for name in row["picks"].split()} == {
        "knee",
        "fastest",
        "most-accurate",
    }
    front = {i for i, row in enumerate(rows) if not row["bundle"]}
    for i in front:  # no network dominates one that is listed without a bundle
        assert not any(
            accuracy[j] >= accuracy[i]
            and latency[j] <= latency[i]
            and (accuracy[j], latency[j]) != (accuracy[i], latency[i])
            for j in range(len(rows))
        )


def test_measurements_table_contains_every_timed_network(finished: Path) -> None:
    roles = [row.role for row in read_measurements(finished / "measurements.parquet")]
    assert roles == ["finalist"] * 3
    profile = DeviceStore(finished / "devices").load(TARGET)
    assert len(profile) == 5


# Resuming


@pytest.mark.slow
def test_finished_run_is_unchanged_by_resume_and_run(
    finished: Path, finished_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    resumed = experiment.resume(finished)
    again = experiment.run(finished_recipe, finished)
    assert capsys.readouterr().err.count("is finished; nothing is left to do") == 2
    assert resumed == again
    assert content(finished) == before


def test_run_refuses_another_recipe(finished: Path, finished_recipe: Path) -> None:
    before = content(finished)
    with pytest.raises(RunError, match="of another recipe"):
        experiment.run(finished_recipe, finished, ["search.trials=13"])
    assert content(finished) == before


@pytest.mark.parametrize(
    ("lost", "redone"),
    [
        ("report.html", ["report"]),
        ("front.csv", ["report"]),
        pytest.param("bundles", ["finalists", "report"], marks=pytest.mark.slow),
        pytest.param("measurements.parquet", ["finalists", "report"], marks=pytest.mark.slow),
        pytest.param(
            "devices",
            [f"calibrate@{TARGET}", "search", "report"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_resume_remakes_a_lost_result(finished: Path, lost: str, redone: list[str]) -> None:
    path, scored = finished / lost, scores(finished)
    weights = (finished / "supernet" / "weights.safetensors").read_bytes()
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (finished / "log.jsonl").unlink()
    summary = experiment.resume(finished, QUIET)
    assert path.exists()
    assert len(summary.finalists) == 3
    done = [stage for event, stage in events(finished) if event == "done"]
    if lost == "devices":  # new predictions may choose the same finalists, or others
        done = [stage for stage in done if stage != "finalists"]
    assert done == redone
    assert scores(finished) == scored
    assert (finished / "supernet" / "weights.safetensors").read_bytes() == weights
    roles = [row.role for row in read_measurements(finished / "measurements.parquet")]
    assert roles == ["finalist"] * 3
    profile = DeviceStore(finished / "devices").load(TARGET)
    assert len(profile) == 5


@pytest.mark.slow
def test_resume_remakes_a_lost_study_from_the_scores(finished: Path) -> None:
    before, scored = rows_of(finished), scores(finished)
    for file in finished.glob("study.db*"):
        file.unlink()
    experiment.resume(finished, QUIET)
    assert scores(finished) == scored
    assert rows_of(finished) == before


# Several targets at once


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["worst", "sum"])
def test_objective_with_several_targets_reduces_their_latencies(
    reduce: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    targets, how = [TARGET, OTHER_TARGET], max if reduce == "worst" else sum
    edit(tiny_recipe, (f'target = "{TARGET}"', f'targets = {targets}\nreduce = "{reduce}"'))
    small = ["deploy.top=2", "deploy.finetune_epochs=0", "predictor.networks=4", "train.epochs=1"]
    summary = experiment.run(tiny_recipe, tmp_path / "run", small, QUIET)
    stages = json.loads((tmp_path / "run/run.json").read_text())["stages"]
    assert [name for name in stages if name.startswith("calibrate")] == [
        f"calibrate@{target}" for target in targets
    ]
    label = f"latency_ms@{reduce}({TARGET}+{OTHER_TARGET})"
    measured = {}
    for row in rows_of(tmp_path / "run"):
        each = [float(row[f"latency_ms@{target}"]) for target in targets]
        assert float(row[label]) == pytest.approx(how(each))
        if row["bundle"]:
            each = [float(row[f"measured_latency_ms@{target}"]) for target in targets]
            measured[row["id"]] = float(row["measured_latency_ms"])
            assert measured[row["id"]] == pytest.approx(how(each))
            bundle = Bundle.load(tmp_path / "run" / row["bundle"])
            assert [m.target for m in bundle.measurements] == targets
            assert [p["target"] for p in bundle.description["predictions"]] == targets
    fastest = next(row.id for row in summary.finalists if "fastest" in row.picks)
    assert measured[fastest] == min(measured.values())
    page = (tmp_path / "run/report.html").read_text()
    assert f"on {OTHER_TARGET}" in page
    assert experiment.status(tmp_path / "run")["targets"] == targets


# Further targets


@pytest.mark.slow
def test_specialise_needs_no_training_and_no_repeated_evaluation(finished: Path) -> None:
    before = content(finished)
    scored = scores(finished)
    [summary] = experiment.specialise(finished, [OTHER_TARGET], QUIET)
    after = content(finished)
    for name in ("training.jsonl", "weights.safetensors", "checkpoint.safetensors"):
        assert after[f"supernet/{name}"] == before[f"supernet/{name}"], "0 training steps"
    new = scores(finished)
    assert new[: len(scored)] == scored
    assert len({tuple(key) for key in new}) == len(new), "0 repeated evaluations"
    assert len(summary.finalists) == 3
    out = finished / "targets" / OTHER_TARGET
    assert {p.name for p in out.iterdir()} >= {"front.csv", "bundles", "report.html"}
    for row in rows_of(out):
        if row["bundle"]:
            bundle = Bundle.load(finished / row["bundle"])
            bundle.verify()
            assert bundle.measurements[0].target == OTHER_TARGET
    own = {
        name for name in before if not name.startswith(("study.db", "scores", "run.json", "fin"))
    }
    assert all(after[name] == before[name] for name in own), "the run's own results stay"
    assert experiment.status(finished)["targets"] == [TARGET, OTHER_TARGET]
    reports = experiment.rewrite_reports(finished)
    assert reports == [finished / "report.html", out / "report.html"]
    exported = experiment.export(finished, finished.parent / "eight", target=OTHER_TARGET)
    assert exported.measurements[0].target == OTHER_TARGET


def test_specialise_refuses_own_and_unknown_targets(finished: Path) -> None:
    with pytest.raises(ConfigError, match=f"{TARGET} is a target of the search of "):
        experiment.specialise(finished, [TARGET], QUIET)
    with pytest.raises(ConfigError, match=f"closest target is {OTHER_TARGET!r}"):
        experiment.specialise(finished, ["cpu-onnxruntime-fp31-b8-t1"], QUIET)
    assert not (finished / "targets").exists()


@pytest.mark.slow
def test_specialise_adds_no_target_on_which_nothing_keeps_the_limit(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    """Networks meet the limit at batch size 1, but not at 4,096."""
    run = tmp_path / "run"
    small = ["search.trials=4", "deploy.top=1", "deploy.finetune_epochs=0", "predictor.networks=4"]
    experiment.run(tiny_recipe, run, ["objective.1.limit=2", *small], QUIET)
    with pytest.raises(InfeasibleError, match="no network of the space has latency"):
        experiment.specialise(run, ["cpu-onnxruntime-fp32-b4096-t1"], QUIET)
    experiment.resume(run, QUIET)
    assert experiment.status(run)["targets"] == [TARGET]


# Exporting


@pytest.mark.parametrize("pick", [None, "knee", "fastest", "most-accurate"])
def test_export_copies_the_bundle_of_the_pick(
    finished: Path, tmp_path: Path, pick: str | None
) -> None:
    [row] = [row for row in rows_of(finished) if (pick or "knee") in row["picks"].split()]
    bundle = experiment.export(finished, tmp_path / "out" / "model", pick)
    assert bundle.architecture.id == row["id"]
    assert content(bundle.folder) == content(finished / row["bundle"])


def test_export_gives_all_files_the_same_permissions(finished: Path, tmp_path: Path) -> None:
    """This includes runs whose weights only their owner can read."""
    for weights in finished.glob("bundles/*/weights.safetensors"):
        weights.chmod(0o600)
    bundle = experiment.export(finished, tmp_path / "model")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in bundle.folder.iterdir()}
    assert set(modes.values()) == {modes["bundle.json"]}, modes


def test_export_with_a_latency_limit_picks_a_network_that_keeps_it(
    finished: Path, tmp_path: Path
) -> None:
    rows = [row for row in rows_of(finished) if row["bundle"]]
    latencies = {row["id"]: float(row["measured_latency_ms"]) for row in rows}
    fastest = min(latencies, key=lambda name: latencies[name])
    bundle = experiment.export(finished, tmp_path / "a", max_latency_ms=latencies[fastest])
    assert bundle.architecture.id == fastest
    with pytest.raises(InfeasibleError, match=f"fastest was measured at {latencies[fastest]:.3g}"):
        experiment.export(finished, tmp_path / "b", max_latency_ms=latencies[fastest] / 2)
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_export_packs_other_networks_and_leaves_the_run_unchanged(
    finished: Path, tmp_path: Path
) -> None:
    finalists = {row["id"] for row in rows_of(finished) if row["bundle"]}
    other = next(key[0] for key in scores(finished) if key[0] not in finalists)
    before = content(finished)
    bundle = experiment.export(finished, tmp_path / "other", pick=other)
    bundle.verify()
    assert bundle.architecture.id == other
    assert bundle.measurements[0].target == TARGET
    assert sorted(p.name for p in bundle.folder.iterdir()) == sorted(
        p.name for p in (finished / "bundles" / min(finalists)).iterdir()
    )
    after = content(finished)
    assert {name for name in after if after[name] != before.get(name)} <= {
        f"finalists/{other}.safetensors",
        "study.db",
        "study.db-shm",
        "study.db-wal",
    }


@pytest.mark.parametrize("pick", ["000000000000", "fastst"])
def test_export_refuses_unknown_picks(finished: Path, tmp_path: Path, pick: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a network of this run; .*known: .*knee"):
        experiment.export(finished, tmp_path / "a" / "out", pick)
    assert not (tmp_path / "a").exists()


def test_export_overwrites_nothing(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="exists already"):
        experiment.export(finished, tmp_path)


# Own components


@pytest.fixture
def own_parts(tmp_path: Path) -> Path:
    """Copy the modules of a user into the folder of the recipe."""
    tests = Path(__file__).parent
    for module in (tests / "own_parts.py", tests / "search" / "ink_centre.py"):
        shutil.copy(module, tmp_path / f"own_{module.name}")
    return tmp_path


@pytest.mark.slow
def test_run_works_with_own_task_data_and_space(
    own_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own_parts)
    blots = resolve("data.source", "own_ink_centre:blots", {})
    (own_parts / "recipe.toml").write_text(
        f"""
        name = "ink"
        [data]
        source = "own_ink_centre:blots"
        validation_fraction = 0.3
        [task]
        name = "own_ink_centre:task"
        radius = 0.25
        [space]
        name = "own_own_parts:Dense"
        widest = 24
        [train]
        epochs = 40
        batch_size = 16
        learning_rate = 0.02
        shift_pixels = 0
        sampling = "own_own_parts:only_extremes"
        workers = 0
        [[objective]]
        metric = "distance"
        direction = "minimize"
        [[objective]]
        metric = "latency_ms"
        direction = "minimize"
        target = "{TARGET}"
        [predictor]
        networks = 4
        [search]
        trials = 6
        workers = 0
        [deploy]
        top = 2
        finetune_epochs = 60
        finetune_learning_rate = 0.01
        """
    )
    summary = experiment.run(own_parts / "recipe.toml", own_parts / "run", reporter=QUIET)
    assert summary.metric == "distance"
    assert len(summary.finalists) == 2
    bundle = Bundle.load(summary.run / str(summary.finalists[0].bundle))
    described = bundle.description
    assert described["outputs"]["kind"] == "values"
    assert described["labels"] == ["column", "row"]
    assert described["task"] == "ink-centre"
    assert {m["name"] for m in described["metrics"]} >= {"distance", "hits", "macs"}
    dot = np.zeros((1, 8, 8, 1), np.uint8)
    dot[0, 2, 6] = 255
    [answer] = bundle.run(dot)
    assert answer["values"].keys() == {"column", "row"}
    known = blots()
    targets = known["y_train"]
    guess = np.linalg.norm(targets - targets.mean(0), axis=1).mean()
    answers = bundle.predict(known["x_train"][..., None])
    assert np.linalg.norm(answers - targets, axis=1).mean() < 0.6 * guess, "it has learnt"


@pytest.mark.slow
def test_run_with_own_evaluator_trains_no_supernet(own_parts: Path, quick_recipe: Path) -> None:
    edit(
        quick_recipe,
        ("trials = 8", 'trials = 8\nevaluator = "own_own_parts:Wider"'),
        ('name = "mobilenet"', 'name = "own_own_parts:Dense"'),
    )
    text = quick_recipe.read_text()
    start, end = text.index("resolution"), text.index("[train]")
    quick_recipe.write_text(text[:start] + text[end:])
    summary = experiment.run(quick_recipe, own_parts / "run", reporter=QUIET)
    best = max(summary.front, key=lambda row: row.values["accuracy"])
    assert best.values["accuracy"] == best.architecture["width"] / 100
    assert not (own_parts / "run" / "supernet").exists()


@pytest.mark.slow
def test_run_with_train_evaluator_trains_no_supernet(quick_recipe: Path, tmp_path: Path) -> None:
    small = ['search.evaluator="train"', "search.trials=3"]
    summary = experiment.run(quick_recipe, tmp_path / "run", small, QUIET)
    assert summary.trials == 3
    assert not (tmp_path / "run" / "supernet").exists()
    assert summary.finalists[0].measured_latency_ms is None
    bundle = experiment.export(tmp_path / "run", tmp_path / "model")
    assert bundle.verify()
    assert bundle.architecture.id == summary.finalists[0].id, "without latency, the most accurate"
    with pytest.raises(ConfigError, match="no objective latency_ms"):
        experiment.export(tmp_path / "run", tmp_path / "b", max_latency_ms=1)
    with pytest.raises(ConfigError, match="no objective of the recipe has a target"):
        experiment.specialise(tmp_path / "run", [TARGET], QUIET)


@pytest.mark.slow
def test_run_with_grow_evaluator_keeps_weights_for_finalists(
    quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    growing = ['search.sampler="growth"', 'search.evaluator="grow"', "deploy.finetune_epochs=0"]
    summary = experiment.run(quick_recipe, run, growing, QUIET)
    assert summary.trials == 8
    assert not (run / "supernet").exists()
    [finalist] = summary.finalists
    kept = load_file(run / "evaluator" / f"{finalist.id}.safetensors")
    bundled = load_file(run / "finalists" / f"{finalist.id}.safetensors")
    trained = [name for name in kept if name.endswith("weight")]
    assert all(torch.equal(kept[name], bundled[name]) for name in trained)


@pytest.mark.slow
def test_run_adds_random_search_if_requested(quick_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    experiment.run(quick_recipe, run, ["search.random_baseline=true"], QUIET)
    names = optuna.get_all_study_names(f"sqlite:///{run / 'study.db'}")
    assert sorted(names) == ["random", "search"]
    assert "random" in (run / "report.html").read_text()


@pytest.mark.slow
def test_search_that_ends_early_says_so_and_has_a_baseline_of_its_size(
    quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    early = ["search.trials=400", "search.patience=4", "search.random_baseline=true"]
    summary = experiment.run(quick_recipe, run, early, QUIET)
    assert summary.trials < 400
    said = (run / "log.jsonl").read_text()
    ended = f"the search ended after {summary.trials} of 400 trials; search.patience is 4"
    assert ended in said
    baseline = optuna.load_study(study_name="random", storage=f"sqlite:///{run / 'study.db'}")
    complete = [t for t in baseline.trials if t.state is optuna.trial.TrialState.COMPLETE]
    assert len(complete) == summary.trials


@pytest.mark.slow
def test_run_is_determined_by_its_seed(quick_recipe: Path, tmp_path: Path) -> None:
    def found(name: str, seed: int) -> RunResult:
        overrides = [f"seed={seed}", "deploy.finetune_epochs=0"]
        return Experiment.load(quick_recipe, overrides).run(tmp_path / name, QUIET)

    first, second, other = found("a", 0), found("b", 0), found("c", 1)
    assert [(r.id, r.values) for r in first.front] == [(r.id, r.values) for r in second.front]
    assert [(r.id, r.values) for r in first.front] != [(r.id, r.values) for r in other.front]


@pytest.mark.slow
def test_run_reports_and_stores_the_ranking_check(quick_recipe: Path, tmp_path: Path) -> None:
    overrides = ("train.ranking_check=4", "train.ranking_epochs=0.5", "train.sampling=fair")
    run = experiment.run(quick_recipe, tmp_path / "run", overrides, QUIET).run
    found = json.loads((run / "supernet" / "ranking.json").read_text())
    assert found["networks"] == 4
    assert found["metric"] == "accuracy"
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    [note] = [line for line in lines if "ranking" in line]
    assert note["ranking"] == found
    assert "the supernet ranks 4 networks with Kendall's tau" in note["text"]
