"""What does the search engine cost besides evaluation, and how much memory does a whole job take?

The engine is timed with an evaluation that takes no time, each benchmark in a process of its own.
The job is the Fashion-MNIST recipe with a short training, at its real sizes and with its Ray
workers. The memory of all its processes is added up once a second (proportional set size, Linux
only).
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.errors import ConfigError, RunError
from hwnas.search.engine.benchmark import WINDOW, EngineRow, bench_engine

_SECONDS_BETWEEN_SAMPLES = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=2000, help="a multiple of 100, at least 200")
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["guided-12", "guided-45", "nsga2-12", "nsga2-45", "tpe-12", "random-12"],
        metavar="SAMPLER-CHOICES[-TRIALS]",
    )
    parser.add_argument("--job", action=argparse.BooleanOptionalAction, default=True)


def work(arguments: argparse.Namespace) -> None:
    trials: int = arguments.trials
    cases = {name: Case.parse(name, trials) for name in arguments.cases}
    job_overrides = ["train.budget_minutes=1", "search.trials=40", "search.random_baseline=false"]
    setting = Setting(arguments, {"trials": trials}, job_overrides)
    for seed in setting.seeds:
        for name, case in cases.items():
            if setting.answers.find("ms_per_trial", name, seed) is None:
                windows = bench(case, seed)
                setting.observations.put(observed(name, windows, seed))
                setting.answer(summary(name, windows, seed))
        if arguments.job and setting.answers.find("peak_pss", "job", seed) is None:
            setting.answer([job_memory(arguments, [*job_overrides, *arguments.set], seed)])
    setting.show()


@dataclass(frozen=True)
class Case:
    """Benchmark of a sampler: number of trials, and number of choices in the space."""

    sampler: str
    choices: int
    trials: int

    @classmethod
    def parse(cls, name: str, trials: int) -> Case:
        """Parse e.g. ``"nsga2-12"``, or ``"guided-12-10000"`` with its own number of trials."""
        found = re.fullmatch(r"(.+?)-(\d+)(?:-(\d+))?", name)
        if found is None:
            raise ConfigError(f"--cases has {name!r}; expected e.g. nsga2-12 or guided-12-10000")
        case = cls(found[1], int(found[2]), int(found[3] or trials))
        if case.trials < 2 * WINDOW or case.trials % WINDOW:
            raise ConfigError(
                f"{name} has {case.trials} trials; expected a multiple of {WINDOW}, at least "
                "twice that"
            )
        return case


def bench(case: Case, seed: int) -> list[EngineRow]:
    """Run a benchmark in a fresh process, so that its memory is separate from that of others."""
    sampler, choices, trials = case.sampler, case.choices, case.trials
    print(f"seed {seed}: {trials} trials of {sampler} with {choices} choices", flush=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        windows = process.submit(bench_engine, trials, choices, sampler, seed).result()
    if not windows or windows[-1].trials < trials:
        raise ConfigError(
            f"{sampler}, {choices} choices: all networks were evaluated before trial {trials}"
        )
    return windows


def observed(case: str, windows: list[EngineRow], seed: int) -> list[Row]:
    """Return the rows of a benchmark, one for each hundred trials."""
    return [
        Row(
            "ms_per_trial",
            f"{case} at {row.trials}",
            seed,
            row.ms_per_trial,
            "ms",
            WINDOW,
            details={"cpu_ms_per_trial": row.cpu_ms_per_trial, "pss_mb": row.pss_mb},
        )
        for row in windows
    ]


def summary(case: str, windows: list[EngineRow], seed: int) -> list[Row]:
    """Return the mean cost, and the growth of cost and memory from the beginning to the end."""
    first, last, n = windows[0], windows[-1], windows[-1].trials
    wall = sum(row.ms_per_trial for row in windows) / len(windows)
    cpu = sum(row.cpu_ms_per_trial for row in windows) / len(windows)
    growth = last.ms_per_trial / first.ms_per_trial
    cpu_growth = last.cpu_ms_per_trial / first.cpu_ms_per_trial
    spread = {
        "least": min(row.ms_per_trial for row in windows),
        "most": max(row.ms_per_trial for row in windows),
    }
    return [
        Row("ms_per_trial", case, seed, wall, "ms", n, spread),
        Row("cpu_ms_per_trial", case, seed, cpu, "ms", n),
        Row("last_over_first_window", case, seed, growth, "ratio", WINDOW),
        Row("cpu_last_over_first_window", case, seed, cpu_growth, "ratio", WINDOW),
        Row("memory_growth", case, seed, last.pss_mb - first.pss_mb, "MB", n - WINDOW),
    ]


def job_memory(arguments: argparse.Namespace, overrides: list[str], seed: int) -> Row:
    """Return the largest sum of PSS over the processes of a job."""
    run = arguments.work / f"job-{seed}"
    command = [Path(sys.executable).with_name("hwnas"), "search", arguments.recipe, "--run", run]
    for override in [*overrides, f"seed={seed}"]:
        command += ["--set", override]
    print(f"seed {seed}: running the whole job, with its memory sampled", flush=True)
    samples = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as job:
        while job.poll() is None:
            samples.append(tree_pss_mb(job.pid))
            time.sleep(_SECONDS_BETWEEN_SAMPLES)
    if job.returncode:
        raise RunError(f"the job in {run} failed (status {job.returncode}); see above")
    return Row("peak_pss", "job", seed, max(samples), "MB", len(samples))


def tree_pss_mb(pid: int) -> float:
    """Return the memory of a process and its descendants, with shared pages divided among users."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # the process has just ended
    return total / 1e6


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options)
