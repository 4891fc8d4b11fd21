"""Settings and fixtures of all tests: one thread, hypothesis without deadlines, real data."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Set before torch is imported: networks in tests are small, and a second thread slows them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray starts its workers with a niceness of 15, so other tests would leave them hardly any CPU.
os.environ.setdefault("RAY_worker_niceness", "0")

settings.register_profile(
    "hwnas",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("HWNAS_TEST_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hwnas")


MINUTES = float(os.environ.get("HWNAS_TEST_MINUTES", "inf"))
"""Tests that start later are skipped, so that CI ends in time on slow machines, too."""
STARTED_S = time.monotonic()


def pytest_runtest_setup() -> None:
    if time.monotonic() - STARTED_S > 60 * MINUTES:
        pytest.skip(f"the {MINUTES:g} minutes of HWNAS_TEST_MINUTES are over")


@pytest.fixture(scope="session", autouse=True)
def _session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Use an empty HWNAS_HOME: the files of the user are neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        home = str(tmp_path_factory.mktemp("home"))
        patch.setenv("HWNAS_HOME", home)
        yield home


@pytest.fixture(scope="session", autouse=True)
def short_timings() -> Iterator[dict[str, float]]:
    """Time networks for a twentieth of the usual time where a test gives no settings of its own.

    Tests run side by side, so that most rounds are disturbed and would be repeated. Processes that
    a test starts do so, too.
    """
    from hwnas.deploy import TimingSettings

    short = {"warmup": 2, "rounds": 10, "round_ms": 1.0, "retries": 1}
    with pytest.MonkeyPatch.context() as patch:
        brief = partial(TimingSettings, **short)  # type: ignore[arg-type]
        patch.setattr("hwnas.deploy.measurement.timing.TimingSettings", brief)
        patch.setenv("HWNAS_TEST_TIMINGS", json.dumps(short))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "startup"), prepend=os.pathsep)
        yield short


@pytest.fixture(scope="session", autouse=True)
def _short_probes() -> Iterator[None]:
    """Measure the training speed for a tenth of the usual time where a job is planned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hwnas.experiment.planned._PROBE_SECONDS", 1.0)
        patch.setattr("hwnas.planning.rehearsal._SECONDS", 0.2)
        yield


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_home(_session_home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a home of its own for each test, so that none uses measurements of another.

    A folder of tests that share one has a fixture of this name with the scope of a module.
    """
    monkeypatch.setenv("HWNAS_HOME", str(Path(_session_home, str(next(_numbers)))))


@pytest.fixture(autouse=True)
def _independent_of_order() -> Iterator[None]:
    """Seed PyTorch and restore its threads: no test changes the numbers or times of later ones."""
    import torch

    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def hwnas_data() -> Path:
    """Return the folder of real data sets that ``HWNAS_DATA`` names."""
    folder = os.environ.get("HWNAS_DATA")
    if not folder:
        pytest.skip("HWNAS_DATA is not set: it names the folder with the real data sets")
    if not Path(folder).is_dir():
        pytest.skip(f"HWNAS_DATA is {folder}, which is no folder")
    return Path(folder)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start Ray with two CPUs, once for all tests that are marked ``ray``.

    Its workers can import `own_parts` of tests/search.
    """
    from hwnas.search.engine.cluster import local_ray

    with local_ray(2, [Path(__file__).parent / "search"]):
        yield


# A whole search, small enough for tests

TINY = """
name = "tiny"
seed = 0

[data]
source = "digits"
validation_fraction = 0.25
train_limit = 400
test_limit = 200

[task]
name = "classification"

[space]
name = "mobilenet"
resolution = [8]
width = [1.0]
stem_channels = 8
stem_stride = 1
head_channels = 16
feature_channels = 16
stages = [
    { channels = 8, depth = [1, 2], kernel_size = [3, 5], expand_ratio = [1, 2] },
    { channels = 16, stride = 2, kernel_size = [3, 5], expand_ratio = [2, 4] },
]

[train]
epochs = 3
learning_rate = 0.01
workers = 0

[[objective]]
metric = "accuracy"
direction = "maximize"

[[objective]]
metric = "latency_ms"
direction = "minimize"
target = "cpu-onnxruntime-fp32-b1-t1"

[predictor]
networks = 5

[search]
trials = 12
workers = 0

[deploy]
top = 3
finetune_epochs = 1
"""
QUICK = ("objective.1.metric=params", "search.trials=8", "deploy.top=1", "train.epochs=1")
"""Overrides for a search without a target: nothing is timed, and one network is exported."""


@dataclass(frozen=True)
class Answer:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    def refused(self, *parts: str) -> str:
        """Return the error line, which must contain the parts; other lines must be progress."""
        assert self.status == 2, self
        assert "Traceback" not in self.out + self.err
        *progress, line = self.err.splitlines()
        assert line.startswith("error: ")
        assert not [told for told in progress if not told.startswith(("  ", "✓"))], self.err
        for part in parts:
            assert part in line
        return line


@pytest.fixture
def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Return a function that runs the main function of a command in this process."""

    def run(main: Callable[[], object], *words: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", [*map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return Answer(int(ended.value.code or 0), told.out, told.err)

    return run


@pytest.fixture
def hwnas(in_process: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a function that runs a command of hwnas in this process."""
    from hwnas.cli import main

    return partial(in_process, main, "hwnas")


ON_A_FULL_DISK = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
sys.argv = ["hwnas", *sys.argv[2:]]
runpy.run_module("hwnas.cli", run_name="__main__")
"""


@pytest.fixture
def hwnas_on_a_full_disk() -> Callable[..., Answer]:
    """Return a function that runs a command with a maximum file size; this limits root, too.

    The command runs in a separate process, because the limit would end Ray in this one.
    """

    def run(size: int, *arguments: str | Path) -> Answer:
        command = [sys.executable, "-c", ON_A_FULL_DISK, str(size), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """Write the recipe of a search of twenty seconds."""
    path = tmp_path / "recipe.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def quick_recipe(tiny_recipe: Path) -> Path:
    """Write the recipe of a search of four seconds."""
    from hwnas.recipe import read_recipe

    text = tiny_recipe.read_text().replace('target = "cpu-onnxruntime-fp32-b1-t1"', "")
    tiny_recipe.write_text(text)
    tiny_recipe.write_text(read_recipe(tiny_recipe, QUICK)[1])
    return tiny_recipe


@pytest.fixture(scope="session")
def _finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hwnas.experiment import run

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "recipe.toml").write_text(TINY)
    return run(folder / "recipe.toml", folder / "run").run


@pytest.fixture
def finished(_finished_once: Path, tmp_path: Path) -> Path:
    """Copy a finished run, which the test may change."""
    return Path(shutil.copytree(_finished_once, tmp_path / "run"))


@pytest.fixture
def finished_recipe(_finished_once: Path) -> Path:
    """Return the recipe that the finished run was made from."""
    return _finished_once.parent / "recipe.toml"
