"""What is each part of the planned training worth on photographs?

A preset's network of one block per stage is trained on one core for the same minutes: once with all
parts, and once without each part.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.alone import Alone, train_alone
from experiments.command import run_command
from experiments.photographs.options import images_of, name_of_images, parser_of
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.setting import cores
from hwnas.experiment import Experiment
from hwnas.planning import JobFacts, training_values
from hwnas.search.training import TrainConfig
from hwnas.search_spaces import resnet
from hwnas.stages.run_inputs import RunInputs

ALL = "all"
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "low resolution first": {"first_resolution": 1.0},
    "CutMix": {"cutmix": 0.0},
    "random crops": {"crop": 1.0, "shift_pixels": None},
    "moving average": {"ema": 0.0},
    "label smoothing": {"label_smoothing": 0.0},
    "mirroring": {"flip": False},
    "weight decay": {"weight_decay": 0.0},
}
"""Part that each arm lacks, and the settings that switch it off."""


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M")
    parser.add_argument("--preset", choices=["compact", "mixed"], default="mixed")
    parser.add_argument("--width", type=float, default=0.5, metavar="FACTOR")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    config: dict[str, Any] = {
        "images": name_of_images(arguments),
        "preset": arguments.preset,
        "width": arguments.width,
        "minutes": arguments.minutes,
        "precision": arguments.precision,
        "set": arguments.set,
        "without": {name: dict(settings) for name, settings in WITHOUT.items()},
    }
    results = Results(arguments.out / "results.jsonl", config)
    for seed in arguments.seeds:
        if not [row for row in results.rows if row.seed == seed]:
            folder = arguments.work / "ablation" / f"{arguments.preset}-{arguments.width:g}"
            results.put(_rows(arguments, seed, folder))
    print(markdown(results.rows))


def _rows(arguments: argparse.Namespace, seed: int, folder: Path) -> list[Row]:
    """Return the test accuracy of every arm, and the change by leaving each part out."""
    overrides = [f"seed={seed}", "train.epochs=1", *arguments.set]
    job = Experiment.of_images(images_of(arguments), 60.0, overrides=overrides)
    run_inputs = RunInputs.prepare(job.recipe, job.folder)
    values = training_values(JobFacts.of(run_inputs.data, arguments.minutes, 1), arguments.minutes)
    settings = {key.removeprefix("train."): values[key] for key in values}
    config = TrainConfig(**{**settings, "precision": arguments.precision, "workers": 0})
    shape, side = run_inputs.data.image_shape, max(run_inputs.data.image_shape[:2])
    space = resnet(
        *(shape, run_inputs.task.outputs, arguments.preset),
        resolution=(side,),
        width=(arguments.width,),
    )
    network = partial(
        Alone,
        build=partial(space.build, space.smallest()),
        input_shape=space.input_shape(space.smallest()),
        traceable=space.traceable,
    )
    arms = [network(ALL)]
    arms += [network(f"without {name}", settings=WITHOUT[name]) for name in WITHOUT]
    with cores(job.recipe) as at_once:
        networks, _ = train_alone(
            *("photographs", arms, run_inputs, [config]),
            *(folder / f"seed-{seed}", at_once),
        )
    n, whole = len(run_inputs.data.test), networks[0].test
    found = [Row("test_accuracy", x.id, seed, x.test, "fraction", n) for x in networks]
    found += [
        Row("accuracy_change", x.id, seed, x.test - whole, "fraction", n) for x in networks[1:]
    ]
    return found


if __name__ == "__main__":
    main()
