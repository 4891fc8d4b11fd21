"""Does one command find better networks for photographs than MobileNetV3-Small, trained alone?

For each budget and seed, the job of `hwnas search IMAGES --minutes M` is run. MobileNetV3-Small is
trained at four widths, each alone on one core for two thirds of the minutes. All networks are timed
against each other on every target, and each counts on its best target. The spread is over bootstrap
draws of the test images, the same for all networks.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from experiments.alone import Alone, train_alone
from experiments.command import run_command
from experiments.photographs.options import images_of, name_of_images, parser_of
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.setting import cores
from experiments.sides import TARGETS, Network, best_within, measured_rows, of_job, usable
from hwnas.deploy import Target
from hwnas.deploy.runtimes import open_session
from hwnas.experiment import Experiment
from hwnas.search.training import TrainConfig
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.stages.run_inputs import RunInputs

OURS, RIVALS = "hwnas", "alone"
HARDEST = "hardest-rival"
WIDTHS = (0.35, 0.5, 0.75, 1.0)
LIMIT_MS = 5.0
TRAINING = TrainConfig(
    budget_minutes=1.0,
    batch_size=64,
    learning_rate=2e-3,
    weight_decay=0.05,
    ema=0.995,
    crop=0.4,
    flip=True,
    shift_pixels=0,
    label_smoothing=0.1,
    workers=0,
)
_DRAWS = 2000
Hits = Mapping[str, npt.NDArray[np.bool_]]


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[45.0], metavar="M")
    parser.add_argument(
        "--rival-minutes",
        type=float,
        metavar="M",
        help="minutes of each rival; two thirds of --minutes if not given",
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    targets = usable(arguments.targets)
    for minutes in arguments.minutes:
        rival_minutes = arguments.rival_minutes or minutes * 2 / 3
        config = {
            "images": name_of_images(arguments),
            "minutes": minutes,
            "rival_minutes": rival_minutes,
            "set": arguments.set,
            "limit_ms": LIMIT_MS,
            "training": TRAINING.identity,
            "widths": WIDTHS,
            "targets": [target.name for target in targets],
        }
        answers, observations = (
            Results(arguments.out / f"{name}.jsonl", config) for name in ("results", "observations")
        )
        case = f"{minutes:g}-minutes"
        for seed in arguments.seeds:
            if not [row for row in answers.rows if row.seed == seed]:
                folder = arguments.work / case / f"seed-{seed}"
                settings = [f"seed={seed}", *arguments.set]
                images = images_of(arguments)
                job = Experiment.of_images(images, minutes, limit_ms=LIMIT_MS, overrides=settings)
                training = replace(TRAINING, budget_minutes=rival_minutes)
                rows, hits = observe(job, training, seed, targets, folder)
                observations.put(rows)
                answers.put(judge(rows, hits, case, seed))
        print(markdown(answers.rows), flush=True)


def observe(
    job: Experiment, training: TrainConfig, seed: int, targets: Sequence[Target], folder: Path
) -> tuple[list[Row], Hits]:
    """Make the networks of both sides, resuming interrupted work, and time them together.

    Returns:
        Rows of all networks; and for each network, by the subject of its rows, a mask of the test
        images that it gets right.
    """
    minutes = job.recipe.run.minutes
    assert minutes is not None
    print(f"seed {seed}: running the whole job of {minutes:g} minutes", flush=True)
    networks, run_inputs, seconds = of_job(OURS, job, folder / OURS)
    with cores(run_inputs.recipe) as at_once:
        found, _ = train_alone(
            *(RIVALS, rivals(run_inputs), run_inputs, [training], folder / RIVALS, at_once)
        )
    networks += found
    rows = measured_rows(networks, targets, run_inputs, seed)
    rows.append(Row("job_over_budget", OURS, seed, seconds / (60 * minutes), "ratio", 1))
    best = {row.subject: str(row.details["target"]) for row in rows if row.metric == "latency"}
    right = {each.subject: hits(each, best[each.subject], run_inputs) for each in networks}
    return rows, right


def rivals(run_inputs: RunInputs) -> list[Alone]:
    """Return MobileNetV3-Small at several widths.

    There is no dropout, since a training takes minutes.
    """
    side = max(run_inputs.data.image_shape[:2])
    found = []
    for width in WIDTHS:
        config = replace(
            PRESETS["mobilenet-v3-small"](run_inputs.data.image_shape),
            width=(width,),
            in_channels=run_inputs.data.image_shape[2],
            outputs=run_inputs.task.outputs,
            dropout=0.0,
        )
        space = MobileNetSpace(config)
        shape = (config.in_channels, side, side)
        about = {"width": width, "resolution": side}
        name, build = f"mobilenet-v3-small-w{width:g}", partial(_built, space)
        found.append(Alone(name, build, shape, about, traceable=space.traceable))
    return found


def _built(space: MobileNetSpace) -> nn.Module:
    return space.build(space.smallest())


def hits(network: Network, target: str, run_inputs: RunInputs) -> npt.NDArray[np.bool_]:
    """Return for each test image whether a network gets it right, as it runs on a target."""
    session = open_session(network.onnx, Target.parse(target))
    _, height, width = session.input_shape
    data, right = run_inputs.data, []
    preprocessing = run_inputs.task.preprocessing.at(height, width)
    for rows in np.array_split(np.arange(len(data.test)), max(1, len(data.test) // 250)):
        images, targets = data.test.take(rows)
        outputs = session.run(preprocessing(images).contiguous().numpy())
        right.append(outputs.argmax(1) == targets)
    return np.concatenate(right)


def judge(rows: Sequence[Row], hits: Hits, case: str, seed: int) -> list[Row]:
    """Compare the front of a job with each baseline, and with the hardest of them.

    Args:
        rows: Rows of all networks, from `observe`.
        hits: Correct test images of all networks, from `observe`.
        case: First word of the answers' subjects: the budget.
        seed: Seed of the answers.
    """
    errors = [row for row in rows if row.metric == "test_error"]
    ours, rivals = (
        [row for row in errors if row.details["side"] == side] for side in (OURS, RIVALS)
    )
    n = errors[0].n
    draws = np.vstack([np.arange(n), np.random.default_rng(0).integers(0, n, (_DRAWS, n))])
    drawn = {subject: hits[subject][draws].mean(1) for subject in hits}
    front = {r.subject: [float(drawn[r.subject][0]), r.details["latency_ms"]] for r in ours}
    found, scores = [], []
    for rival in rivals:
        gains, ratios = _against(rival, ours, drawn)
        scores.append((gains, ratios))
        details = {
            "rival_accuracy": float(drawn[rival.subject][0]),
            "rival_latency_ms": rival.details["latency_ms"],
            "front": front,
        }
        name = rival.subject.removeprefix(f"{RIVALS} ")
        found += _rows(f"{case} {name}", seed, gains, ratios, n, details)
    gains, ratios = np.min(scores, axis=0)
    found += _rows(f"{case} {HARDEST}", seed, gains, ratios, n, {"rivals": len(rivals)})
    over = next(row for row in rows if row.metric == "job_over_budget")
    return [*found, replace(over, subject=f"{case} {OURS}")]


def _against(
    rival: Row, ours: Sequence[Row], drawn: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return accuracy gained at a baseline's latency and speed at its accuracy, for each draw.

    Args:
        rival: Test error of the baseline.
        ours: Test errors of the finalists.
        drawn: Test accuracy by subject, for the original test images and for each draw of them.
    """
    latency_ms, accuracy = rival.details["latency_ms"], drawn[rival.subject]
    chosen = best_within(ours, latency_ms)  # chosen on validation images, scored on test images
    gains = np.full(_DRAWS + 1, np.nan) if chosen is None else drawn[chosen.subject] - accuracy
    latencies = np.array([row.details["latency_ms"] for row in ours])
    as_good = np.array([drawn[row.subject] >= accuracy for row in ours])
    fastest = np.where(as_good, latencies[:, None], np.inf).min(0)
    return gains, latency_ms / fastest


def _rows(
    subject: str,
    seed: int,
    gains: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    n: int,
    details: Mapping[str, object],
) -> list[Row]:
    return [
        _row("accuracy_gain", subject, seed, gains, "fraction", n, details),
        _row("speed_at_accuracy", subject, seed, ratios, "ratio", n, details),
    ]


def _row(
    metric: str,
    subject: str,
    seed: int,
    values: npt.NDArray[np.float64],
    unit: str,
    n: int,
    details: Mapping[str, object],
) -> Row:
    """Return the first value with the spread of the others; None where no network qualifies."""
    if np.isnan(values[0]):
        return Row(metric, subject, seed, None, unit, n, {}, details)
    low, high = np.quantile(values[1:], (0.05, 0.95))
    spread = {"p05": float(low), "p95": float(high)}
    return Row(metric, subject, seed, float(values[0]), unit, n, spread, details)


if __name__ == "__main__":
    main()
