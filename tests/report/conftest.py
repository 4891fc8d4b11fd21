"""Report data of a realistic search: 60 trials, two objectives, 3 finalists, 8 timed networks."""

import math
import random

import pytest

from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.report import (
    BlockPicture,
    CalibrationRow,
    Finalist,
    Hypervolume,
    ObjectiveInfo,
    ReportData,
    Score,
    StagePicture,
    StageTime,
    TrainingCurveRow,
    TrialRow,
)
from hwnas.search.strategies.learning import LearnedDistribution

TARGET = "cpu-onnxruntime-fp32-b1-t1"
ACCURACY = "accuracy"
LATENCY = f"latency_ms@{TARGET}"


def architecture(rng):
    values = {"resolution": rng.choice((8, 12, 16)), "width": rng.choice((0.5, 1.0))}
    for stage in range(3):
        depth = values[f"stage{stage}.depth"] = rng.randint(1, 3)
        for block in range(depth):
            values[f"stage{stage}.block{block}.kernel_size"] = rng.choice((3, 5))
            values[f"stage{stage}.block{block}.expand_ratio"] = rng.choice((3, 4, 6))
    return values


def stages(values):
    return tuple(
        StagePicture(
            round(channels * values["width"]),
            1 if s == 0 else 2,
            tuple(
                BlockPicture(
                    values[f"stage{s}.block{b}.kernel_size"],
                    values[f"stage{s}.block{b}.expand_ratio"],
                )
                for b in range(values[f"stage{s}.depth"])
            ),
        )
        for s, channels in enumerate((16, 24, 40))
    )


def make_trials(rng, n, sampler):
    rows = []
    for number in range(n):
        values = architecture(rng)
        blocks = sum(value for name, value in values.items() if name.endswith("depth"))
        latency = 0.03 * blocks * (values["resolution"] / 8) ** 1.2 * values["width"] + 0.05
        latency *= rng.uniform(0.9, 1.2)
        accuracy = 0.991 - 0.03 * math.exp(-2.2 * latency) - abs(rng.gauss(0, 0.006))
        rows.append((number, values, accuracy, latency))

    def is_on_front(accuracy, latency):
        return latency <= 0.9 and not any(
            a >= accuracy and b <= latency and (a, b) != (accuracy, latency) for _, _, a, b in rows
        )

    return tuple(
        TrialRow(
            number,
            f"{rng.getrandbits(48):012x}",
            {ACCURACY: accuracy, LATENCY: latency},
            {ACCURACY: math.sqrt(accuracy * (1 - accuracy) / 360)},
            values,
            is_on_front(accuracy, latency),
            latency <= 0.9,
            sampler,
        )
        for number, values, accuracy, latency in rows
    )


def measurement(latency_ms, contended=False):
    spread = Quantiles(0.97 * latency_ms, latency_ms, 1.06 * latency_ms)
    wall = Quantiles(latency_ms, 1.1 * latency_ms, 1.5 * latency_ms)
    return Measurement(
        target=TARGET,
        clock="cpu",
        cpu_ms=spread,
        wall_ms=wall,
        n=60,
        contended=contended,
        anchor_ms=0.21,
        hardware="AMD EPYC",
        versions={"onnxruntime": "1.24"},
        settings={"graph_optimisation": "all", "allow_spinning": "0"},
        time="2026-11-20T10:00:00Z",
    )


def finalist(trial, pick, rng, contended=False):
    accuracy, latency = trial.values[ACCURACY], trial.values[LATENCY]
    test = min(accuracy + rng.uniform(-0.008, 0.003), 0.998)
    timed = measurement(latency * rng.uniform(0.92, 1.08), contended)
    return Finalist(
        id=trial.id,
        architecture=trial.architecture,
        stages=stages(trial.architecture),
        validation=Score(accuracy, math.sqrt(accuracy * (1 - accuracy) / 360), 360),
        test=Score(test, math.sqrt(test * (1 - test) / 360), 360),
        metric="accuracy",
        predicted_latency_ms=latency,
        predicted_std_ms=0.05 * latency,
        measurement=timed,
        macs=round(4e6 * latency),
        params=round(90_000 * latency + 20_000),
        size_bytes=round(4 * (90_000 * latency + 20_000) + 30_000),
        max_relative_error=3.1e-7,
        bundle=f"bundles/{trial.id}",
        picks=(pick,),
        delivered={LATENCY: timed.latency_ms},
    )


def hypervolume(trials, sampler):
    values, best = [], 0.0
    for trial in trials:
        gain = (trial.values[ACCURACY] - 0.9) * max(0.0, 0.9 - trial.values[LATENCY])
        best = max(best, gain) + 0.03 * max(0.0, gain - 0.9 * best)
        values.append(best)
    return Hypervolume(sampler, tuple(range(1, len(trials) + 1)), tuple(values))


def calibration_rows(rng, finalists):
    rows = []
    for index in range(8):
        measured = 0.1 * 1.3**index
        predicted = measured * rng.uniform(0.93, 1.08)
        rows.append(
            CalibrationRow(
                f"timed{index}",
                predicted,
                0.88 * predicted,
                1.13 * predicted,
                measured,
                "left out in turn",
            )
        )
    for found in finalists:
        predicted = found.predicted_latency_ms
        rows.append(
            CalibrationRow(
                found.id,
                predicted,
                0.88 * predicted,
                1.13 * predicted,
                found.measurement.latency_ms,
                "finalist",
            )
        )
    return tuple(rows)


def training_rows(rng):
    return tuple(
        TrainingCurveRow(
            step,
            step / 18,
            0.14 * step,
            0.32 + 1.9 * math.exp(-step / 120) + rng.gauss(0, 0.02),
            0.55 + 1.8 * math.exp(-step / 170) + rng.gauss(0, 0.03),
            0.02 * (1 + math.cos(math.pi * step / 720)),
        )
        for step in range(0, 720, 6)
    )


def make_report_data():
    rng = random.Random(3)
    trials = make_trials(rng, 60, "nsga2")
    baseline = make_trials(rng, 60, "random")
    front = sorted((t for t in trials if t.on_front), key=lambda trial: trial.values[LATENCY])
    finalists = (
        finalist(front[len(front) // 2], "knee", rng),
        finalist(front[0], "fastest", rng),
        finalist(front[-1], "most-accurate", rng, contended=True),
    )
    return ReportData(
        name="quickstart",
        created="2026-11-20 10:12",
        seed=0,
        target=TARGET,
        task="classification of 10 classes",
        space="mobilenet",
        space_size=41_374_152,
        objectives=(
            ObjectiveInfo(ACCURACY, "accuracy", "maximize", "", "evaluated"),
            ObjectiveInfo(LATENCY, "latency_ms", "minimize", "ms", "predicted", 0.9, TARGET),
        ),
        trials=trials,
        baseline_trials=baseline,
        finalists=finalists,
        calibration=calibration_rows(rng, finalists),
        training=training_rows(rng),
        learned=(
            LearnedDistribution(
                0.2,
                "26eb6c1087d6",
                {"depth": {"1": 0.7, "2": 0.3}, "kernel": {"3": 0.1, "5": 0.6, "7": 0.3}},
                0.81,
            ),
        ),
        stage_times=(
            StageTime("data", 0.8, 0.7, None, "done"),
            StageTime("train", 101.3, 190.2, None, "done"),
            StageTime("calibrate", 24.1, 26.0, None, "done"),
            StageTime("search", 31.9, 44.8, None, "done"),
            StageTime("finalists", 27.4, 31.5, None, "done"),
        ),
        hypervolume=(hypervolume(trials, "nsga2"), hypervolume(baseline, "random")),
        reference_point={ACCURACY: 0.9, LATENCY: 0.9},
        break_even="From 2 targets on, one supernet costs less than training each network alone "
        "(101 s once against 62 s a network).",
        warnings=(
            "The machine was busy while most-accurate was measured: read its latency as a range.",
            "cpu is this machine (AMD EPYC, 2 cores); another one ranks networks differently.",
        ),
        versions={"hwnas": "0.1.0", "torch": "2.13.0", "onnxruntime": "1.24.1", "optuna": "5.0"},
        hardware={"cpu": "AMD EPYC 9B14, 2 cores", "memory": "23 GB", "system": "Linux 6.1"},
        recipe_toml='name = "quickstart"\nseed = 0\n[data]\nsource = "digits"\n\n[search]\n'
        'sampler = "nsga2"\ntrials = 60\n',
        next_commands=(
            "hwnas export runs/quickstart --pick knee --out model",
            "hwnas specialise runs/quickstart --target cpu-onnxruntime-fp32-b8-t1",
        ),
    )


@pytest.fixture(scope="session")
def report_data():
    return make_report_data()
