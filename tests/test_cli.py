"""Commands of the command line: printed text and JSON."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from sklearn.datasets import load_digits

from hwnas import __version__
from hwnas.cli import app
from hwnas.cli.search import _resumable
from hwnas.deploy import Bundle
from hwnas.deploy.runtimes.ort_web_files import WEB_FILES

TARGET = "cpu-onnxruntime-fp32-b1-t1"
Command = Callable[..., Any]


def read(answer: Any) -> Any:
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


@pytest.fixture
def bundle(finished: Path) -> Bundle:
    return Bundle.load(min((finished / "bundles").iterdir()))


@pytest.mark.slow
def test_search_command_prints_the_front_and_next_commands(
    hwnas: Command, finished: Path, finished_recipe: Path
) -> None:
    answer = hwnas("search", finished_recipe, "--run", finished)
    assert answer.status == 0
    assert "nothing is left to do" in answer.err
    lines = answer.out.splitlines()
    assert lines[0].strip() == f"Pareto front of {finished} (12 candidates evaluated)"
    assert sum(line.startswith("bundle   ") for line in lines) == 3
    assert f"  hwnas export {finished} --pick knee --out my-model" in lines
    for path in (line.split()[1] for line in lines if line.startswith(("bundle ", "report "))):
        assert Path(path).exists()


@pytest.mark.slow
def test_next_commands_of_a_finished_run_work(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    [image] = pngs(tmp_path, 1)
    answer = read(hwnas("resume", finished, "--json"))
    export, verify, run, specialise = answer["next_commands"]
    places = {"my-model": str(tmp_path / "my-model"), "image.png": str(image)}
    for command in (export, verify, run):
        arguments = [places.get(word, word) for word in command.split()[1:]]
        assert hwnas(*arguments).status == 0
    assert specialise == f"hwnas specialise {finished} --target cpu-onnxruntime-fp32-b8-t1"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["search", "resume"])
def test_search_and_resume_commands_print_a_json_summary(
    hwnas: Command, finished: Path, finished_recipe: Path, command: str
) -> None:
    given = [finished] if command == "resume" else [finished_recipe, "--run", finished]
    summary = read(hwnas(command, *given, "--json"))
    assert summary["trials"] == 12
    assert summary["metric"] == "accuracy"
    assert sum(row["bundle"] is not None for row in summary["front"]) == 3
    assert [o["label"] for o in summary["objectives"]] == ["accuracy", f"latency_ms@{TARGET}"]
    assert Path(summary["report"]).is_file()


def test_status_command_shows_state_targets_and_stages(hwnas: Command, finished: Path) -> None:
    text = hwnas("status", finished).out
    assert "tiny: finished" in text
    assert "12 of 12 candidates evaluated" in text
    found = read(hwnas("status", finished, "--json"))
    assert found["state"] == "finished"
    assert found["targets"] == [TARGET]
    assert found["stages"]["train"]["state"] == "done"


def test_status_command_suggests_resume_for_an_unfinished_run(
    hwnas: Command, finished: Path
) -> None:
    (finished / "report.html").unlink()
    text = hwnas("status", finished).out
    assert "tiny: unfinished" in text
    assert f"next: hwnas resume {finished}" in text


@pytest.mark.slow
def test_front_command_prints_writes_and_selects_networks(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    answer = hwnas("front", finished, "--csv", tmp_path / "front.csv")
    assert answer.status == 0
    assert answer.out.splitlines()[0] == f"Pareto front of {finished} (12 candidates evaluated)"
    for name in ("knee", "fastest", "most-accurate"):
        assert name in answer.out
    assert (tmp_path / "front.csv").read_text() == (finished / "front.csv").read_text()
    whole = read(hwnas("front", finished, "--json"))
    assert whole["front"] == read(hwnas("resume", finished, "--json"))["front"]
    [knee] = read(hwnas("front", finished, "--pick", "knee", "--json"))["front"]
    assert "knee" in knee["picks"]
    assert hwnas("front", finished, "--pick", knee["id"]).out.count(knee["id"]) == 1


def test_front_command_shows_a_run_without_finalists(hwnas: Command, finished: Path) -> None:
    shutil.rmtree(finished / "bundles")
    (finished / "report.html").unlink()
    answer = hwnas("front", finished)
    assert answer.status == 0
    assert "knee" in answer.out
    assert "tested" not in answer.out


@pytest.mark.slow
def test_compare_command_prints_coverage_and_hypervolume_shares(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    answer = hwnas("compare", finished, other, "--csv", tmp_path / "table.csv")
    assert answer.status == 0
    assert f"100% of the front of {finished} is equalled or beaten by {other}" in answer.out
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 3
    found = read(hwnas("compare", finished, other, "--json"))
    assert [run["run"] for run in found["runs"]] == [str(finished), str(other)]
    assert [run["hypervolume_share"] for run in found["runs"]] == [1, 1]


@pytest.mark.slow
def test_report_command_rewrites_the_report_and_prints_its_path(
    hwnas: Command, finished: Path
) -> None:
    path = finished / "report.html"
    path.unlink()
    assert hwnas("report", finished).out.splitlines() == [str(path)]
    assert path.stat().st_size > 100_000
    assert read(hwnas("report", finished, "--json")) == [str(path)]


def test_export_command_writes_the_picked_bundle(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = hwnas("export", finished, "--pick", "fastest", "--out", out)
    assert answer.status == 0
    assert f"next: hwnas run {out} image.png" in answer.out
    other = read(hwnas("export", finished, "--pick", "fastest", "--out", tmp_path / "b", "--json"))
    assert other["id"] == Bundle.load(out).architecture.id


def test_export_command_writes_a_web_page(hwnas: Command, finished: Path, tmp_path: Path) -> None:
    files = tmp_path / "onnxruntime-web"
    files.mkdir()
    for name in WEB_FILES:
        (files / name).write_text("")
    options = ("--web", tmp_path / "page", "--runtime-files", files)
    answer = hwnas("export", finished, *options)
    assert answer.status == 0, answer.err
    assert "python -m http.server" in answer.out
    assert (tmp_path / "page" / "index.html").exists()
    hwnas("export", finished, *options).refused("not an empty folder")
    hwnas("export", finished).refused("give --out", "or --web")
    wrong = ("--web", tmp_path / "other", "--runtime-files", tmp_path)
    hwnas("export", finished, *wrong).refused("--runtime-files", "npm pack")
    assert not (tmp_path / "other").exists()


def test_export_command_writes_a_triton_repository(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    answer = hwnas("export", finished, "--out", tmp_path / "out", "--triton-repository", models)
    assert answer.status == 0
    [model] = models.iterdir()
    assert model.name == Bundle.load(tmp_path / "out").description["id"]
    assert (model / "config.pbtxt").is_file()
    assert f"{model}: for Triton" in answer.out


def test_verify_command_checks_golden_outputs_and_time(hwnas: Command, bundle: Bundle) -> None:
    answer = hwnas("verify", bundle.folder)
    assert answer.status == 0
    assert "✓ golden outputs" in answer.out
    checks = read(hwnas("verify", bundle.folder, "--json"))
    assert all(check["ok"] for check in checks)
    assert len(answer.out.splitlines()) == len(checks)
    *same, timed = read(hwnas("verify", bundle.folder, "--time", "--json"))
    assert same == checks
    assert timed["name"].startswith("time of cpu-onnxruntime-fp32-b1-t1")
    assert "ms now" in timed["detail"]


def pngs(folder: Path, count: int) -> list[Path]:
    paths = []
    for number, image in enumerate(load_digits().images[:count]):
        paths.append(folder / f"digit{number}.png")
        Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8)).save(paths[-1])
    return paths


def test_run_command_prints_label_and_probability_of_each_image(
    hwnas: Command, bundle: Bundle, tmp_path: Path
) -> None:
    images = pngs(tmp_path, 3)
    lines = hwnas("run", bundle.folder, *images).out.splitlines()
    answers = read(hwnas("run", bundle.folder, *images, "--json"))
    assert [answer["image"] for answer in answers] == [str(image) for image in images]
    for line, answer, image in zip(lines, answers, images, strict=True):
        assert line == f"{image}  {answer['label']}  {answer['probability']:.1%}"
        assert answer["label"] in "0123456789"


@pytest.mark.slow
def test_measure_command_prints_cpu_and_wall_time(hwnas: Command, bundle: Bundle) -> None:
    model = bundle.onnx_file
    measured = read(hwnas("measure", model, "--target", TARGET, "--json"))
    assert measured["target"] == TARGET
    assert 0 < measured["cpu_ms"]["p20"] <= measured["cpu_ms"]["p50"] <= measured["cpu_ms"]["p80"]
    text = hwnas("measure", model, "--target", TARGET).out
    assert "CPU time" in text
    assert "wall time" in text


@pytest.mark.slow
def test_fingerprint_command_prints_machine_and_refuses_unknown_targets(hwnas: Command) -> None:
    found = read(hwnas("fingerprint", "--target", TARGET, "--json"))
    assert found["target"] == TARGET
    assert found["machine"]["gmacs"] > 0
    assert "modelled" in hwnas("fingerprint", "--target", TARGET).out
    refused = hwnas("fingerprint", "--target", "cpu-openvin-fp32-b1-t1")
    assert refused.status == 2
    assert "did you mean 'openvino'" in refused.err


def test_devices_command_lists_usable_targets_and_missing_packages(hwnas: Command) -> None:
    told = hwnas("devices").out
    assert re.search(r"^  cpu-onnxruntime-fp32-b{B}-t{T} +usable  onnxruntime ", told, re.MULTILINE)
    assert "pip install 'hwnas[litert]'" in told
    targets = {each["target"]: each for each in read(hwnas("devices", "--json"))["targets"]}
    assert targets["cpu-onnxruntime-int8-b{B}-t{T}"]["usable"]
    assert targets["cpu-pytorch-fp32-b{B}-t{T}"]["details"]["processor"]


@pytest.mark.slow
def test_spaces_command_lists_spaces(hwnas: Command) -> None:
    text = hwnas("spaces").out
    assert "mobilenet" in text
    assert '[space] name = "package.module:object"' in text
    assert "mobilenet" in {space["name"] for space in read(hwnas("spaces", "--json"))}


def test_bench_predictor_command_scores_devices_and_refuses_bad_options(
    hwnas: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    archs = rng.integers(0, 5, (300, 6))
    base = 1 + (archs == 3).sum(1) + 0.4 * (archs == 2).sum(1)
    latencies = base[:, None] * [1.0, 2.0, 3.0, 5.0] + 0.01 * rng.random((300, 4))
    table, rows = tmp_path / "table.npz", tmp_path / "rows.json"
    np.savez(table, lat_ms=latencies, devices=np.array(["a", "b", "c", "d"]), archs=archs)
    options = ["--table", table, "--train", "a,b,c", "--test", "d", "--pool", 100, "--seeds", 2]
    answer = hwnas("bench", "predictor", *options, "--protocol", "full", "--json", rows)
    assert answer.status == 0
    assert "Spearman" in answer.out
    first, second = json.loads(rows.read_text())
    assert (first["device"], first["seed"], second["seed"]) == ("d", 0, 1)
    assert first["spearman"] > 0.9
    assert set(first) == {
        "device", "method", "samples", "seed", "spearman", "kendall", "mape", "median_ape",
        "coverage90", "width90", "relative_width90", "violation", "regret", "seconds",
    }  # fmt: skip
    for wrong, named in (
        (["--train", "a,x", "--test", "d"], "no device 'x'"),
        (["--train", "a,b", "--test", "d", "--method", "rigde"], "did you mean 'ridge'"),
        (["--train", "a,b", "--test", "d", "--metric", "energy"], "no energy_mj"),
        (["--train", "a,b", "--test", "d", "--space", "fbnet"], "22 positions"),
        (["--train", "a,b", "--test", "d", "--protocol", "half"], "--protocol"),
    ):
        refused = hwnas("bench", "predictor", "--table", table, *wrong, "--pool", 100)
        assert refused.status == 2
        assert named in refused.err
        assert refused.err.count("\n") == 1


def test_bench_engine_command_writes_rows(hwnas: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    answer = hwnas("bench", "engine", "--trials", 20, "--choices", 4, "--json", rows)
    assert answer.status == 0
    [*_, last] = json.loads(rows.read_text())
    assert last["trials"] == 20
    assert last.keys() >= {"sampler", "choices", "ms_per_trial", "cpu_ms_per_trial", "pss_mb"}


@pytest.mark.parametrize("algorithm", ["nsga2", "nsga3", "moead", "hype"])
def test_bench_evolve_command_writes_speed_and_front_quality(
    hwnas: Command, tmp_path: Path, algorithm: str
) -> None:
    rows = tmp_path / "rows.json"
    sizes = ["--population", 60, "--generations", 4, "--objectives", 3, "--on", "cpu"]
    answer = hwnas("bench", "evolve", "--algorithm", algorithm, *sizes, "--json", rows)
    assert answer.status == 0
    assert f"{algorithm} of 60 on cpu" in answer.out
    [row] = json.loads(rows.read_text())
    assert list(row) == [
        "algorithm", "population", "individuals_per_second", "hypervolume", "igd", "device",
    ]  # fmt: skip
    assert (row["algorithm"], row["population"], row["device"]) == (algorithm, 60, "cpu")
    assert row["individuals_per_second"] > 0
    assert 0 < row["igd"] < 3


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--algorithm", "nsga4", "unknown algorithm 'nsga4'; did you mean 'nsga"),
        ("--population", "3", "population is 3; expected at least 4"),
        ("--generations", "0", "generations is 0; expected at least 1"),
        ("--objectives", "1", "objectives is 1; expected 2 to 24"),
        ("--on", "gpu", "unknown device 'gpu'; expected cpu or cuda"),
    ],
)
def test_bench_evolve_command_refuses_invalid_options(
    hwnas: Command, tmp_path: Path, option: str, value: str, message: str
) -> None:
    rows = tmp_path / "rows.json"
    hwnas("bench", "evolve", option, value, "--json", rows).refused(message)
    assert not rows.exists()


@pytest.mark.slow
def test_specialise_command_adds_finalists_for_another_target(
    hwnas: Command, finished: Path
) -> None:
    target = "cpu-onnxruntime-fp32-b8-t1"
    answer = hwnas("specialise", finished, "--target", target)
    assert answer.status == 0
    assert f"report   {finished}/targets/{target}/report.html" in answer.out
    [summary] = read(hwnas("specialise", finished, "--target", target, "--json"))
    assert sum(row["bundle"] is not None for row in summary["front"]) == 3


# Parsing and help


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serach"], "No such command 'serach'"),
        (["search"], "Missing"),
        (["search", "a.toml", "--bogus"], "No such option: --bogus"),
        (["specialise", "run"], "Missing"),
        (["export", "run", "--out", "x", "--max-latency-ms", "fast"], "--max-latency-ms"),
        (["bench", "engine", "--trials", "0"], "--trials"),
        (["bench", "engin"], "No such command 'engin'"),
    ],
)
def test_wrong_commands_are_refused_in_one_line_with_a_hint_to_help(
    hwnas: Command, arguments: list[str], message: str
) -> None:
    hwnas(*arguments).refused(message, "see `hwnas", "--help`")


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_missing_commands_print_help_and_an_error(hwnas: Command, arguments: list[str]) -> None:
    answer = hwnas(*arguments)
    assert "COMMAND [ARGS]" in answer.out
    assert answer.status == 2
    assert answer.err.splitlines() == [
        f"error: a command is missing; try `{' '.join(['hwnas', *arguments])} --help`"
    ]


def test_help_lists_every_command_and_search_first(hwnas: Command) -> None:
    shown = re.findall(r"^│ ([a-z][a-z-]*) ", hwnas("--help").out, re.MULTILINE)
    assert shown[0] == "search"
    assert sorted(shown) == sorted(typer.main.get_command(app).commands)


def test_help_option_exits_with_status_0(hwnas: Command) -> None:
    answer = hwnas("search", "--help")
    assert answer.status == 0
    assert "A TOML recipe" in answer.out


@pytest.mark.slow
def test_closed_output_pipe_causes_no_traceback() -> None:
    script = "import sys; from hwnas.cli import main; sys.argv = ['hwnas', 'spaces']; main()"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


# Interruptions


def start(recipe: Path, run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hwnas.cli", "search", str(recipe), "--run", str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(happened: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    while not happened():
        assert child.poll() is None, child.communicate()
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_search_names_the_resume_command_and_continues(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    child = start(quick_recipe, run)
    wait_until((run / "scores.jsonl").exists, child)
    child.send_signal(number)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert told.splitlines()[-1] == f"interrupted; `hwnas resume {run}` continues from here"
    assert "Traceback" not in told
    assert not list(run.rglob("*.tmp"))
    scored = (run / "scores.jsonl").read_text()
    answer = hwnas("resume", run)
    assert answer.status == 0
    assert "train ..." not in answer.err, "what was done is not done again"
    assert (run / "scores.jsonl").read_text().startswith(scored)


def test_dropped_interrupt_ends_the_run_at_the_next_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python drops exceptions in destructors and in callbacks of C libraries."""
    (tmp_path / "run.json").write_text("{}")

    def work() -> None:
        with _resumable(tmp_path) as reporter, reporter.stage("search") as advance:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            advance(0.5)

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 130
    assert f"`hwnas resume {tmp_path}` continues from here" in capsys.readouterr().err


def test_commands_restore_signal_handlers(
    hwnas: Command, finished: Path, finished_recipe: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    hwnas("search", finished_recipe, "--run", finished)
    hwnas("resume", finished / "nowhere")
    assert signal.getsignal(signal.SIGTERM) is before


def test_version_command_prints_versions_of_hwnas_and_its_dependencies(hwnas: Command) -> None:
    assert hwnas("--version").out.strip() == f"hwnas {__version__}"
    versions = read(hwnas("version", "--json"))
    assert versions["hwnas"] == __version__
    assert versions["numpy"] == np.__version__
    assert "hypothesis" not in versions
    lines = dict(line.split(maxsplit=1) for line in hwnas("version").out.splitlines())
    assert lines == {name: value or "not installed" for name, value in versions.items()}


@pytest.mark.slow
def test_shell_completion_offers_commands_and_options() -> None:
    def completions(words: str) -> list[str]:
        number = str(len(words.split(" ")) - 1)
        about = {"COMP_WORDS": words, "COMP_CWORD": number, "_HWNAS_COMPLETE": "complete_bash"}
        command = [Path(sys.executable).with_name("hwnas")]
        done = subprocess.run(command, env={**os.environ, **about}, capture_output=True, text=True)
        return done.stdout.split()

    assert "search" in completions("hwnas se")
    assert "--minutes" in completions("hwnas search --mi")
