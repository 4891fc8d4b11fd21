"""Are networks smaller if the search knows of zeros, or if its networks are pruned afterwards?

For each model and seed, two jobs of `hwnas compress` have equal minutes. One searches which blocks
have 2:4 sparsity. The other one searches dense networks in int8; its finalists are pruned to 2:4
sparsity afterwards and fine-tuned once more, in further minutes, and count as they were, too. The
size of a network is that of its int8 file, compressed without loss.
"""

from __future__ import annotations

import argparse
import lzma
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.alone import weights_of
from experiments.by_model import add_model_options, answer_by_model
from experiments.compress.models import LEARNING_RATES, MODELS
from experiments.compress.run import ANY, named, pretrain
from experiments.configuration import recipe_values
from experiments.equal_accuracy import compared
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import Network, error_row, of_job, tested_on
from hwnas.deploy import Bundle, Target
from hwnas.experiment import Experiment
from hwnas.progress import SilentReporter
from hwnas.stages.deployment.sweep import SweepOptions, sweep_network
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.run_inputs import RunInputs

SEARCHED, AFTERWARDS = "searched", "afterwards"
TARGET = Target.parse("cpu-onnxruntime-int8-b1-t1")
VARIANT = "sparse-2of4-int8"
SPARSE = Path(__file__).with_name("sparse.toml")
_SIZE = "file_bytes"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, MODELS)


def work(arguments: argparse.Namespace) -> None:
    sparse = Experiment.load(SPARSE, [within(ANY), *arguments.set])
    config = {
        "pretraining": arguments.pretraining,
        "learning_rates": LEARNING_RATES,
        "variant": VARIANT,
        SEARCHED: recipe_values(sparse.recipe),
    }
    setting = Setting(arguments, config, [named(ANY)])
    answer_by_model(
        *(setting, arguments.models, MODELS, SEARCHED),
        lambda models, seed: pretrain(setting, models, seed, arguments.pretraining),
        lambda model, seed: observe(setting, arguments.set, model, seed),
        judge,
    )


def within(model: str) -> str:
    """Return the value of ``space.network.model`` that the sparse recipe leaves open."""
    return named(model).replace("space.", "space.network.", 1)


def observe(setting: Setting, overrides: list[str], model: str, seed: int) -> list[Row]:
    """Run both jobs of a model, prune the finalists of the dense one, and score all files."""
    folder = setting.work / f"seed-{seed}" / model
    weights = weights_of(folder.with_name("whole"), model).absolute()
    jobs = {
        SEARCHED: Experiment.load(
            SPARSE,
            [within(model), f'space.network.weights="{weights}"', *overrides, f"seed={seed}"],
        ),
        AFTERWARDS: setting.experiment(seed, [named(model), f'space.weights="{weights}"']),
    }
    rows: list[Row] = []
    for side, job in jobs.items():
        print(f"seed {seed}: running the job of {model} {side}", flush=True)
        run = folder / side
        finalists, run_inputs, seconds = of_job(f"{model} {side}", job, run)
        rows.append(Row("seconds", f"{model} {side}", seed, seconds, "s", 1))
        bundles = read_bundles(run / "bundles").values()
        networks = [
            replace(network, onnx=bundle.file_in("int8"))
            for network, bundle in zip(finalists, bundles, strict=True)
        ]
        if side == AFTERWARDS:
            begun = time.monotonic()
            networks = [*networks, *pruned(networks, run)]
            further = time.monotonic() - begun
            rows.append(Row("seconds", f"{model} pruning", seed, further, "s", 1))
        rows += [row_of(network, run_inputs, seed) for network in networks]
    return rows


def pruned(networks: list[Network], run: Path) -> Iterator[Network]:
    """Yield the finalists of a run, pruned and fine-tuned as long as in the run."""
    options = SweepOptions((VARIANT,), max_loss=1.0)
    for network in networks:
        out = run.with_name("pruned") / network.id
        if not out.exists():
            picked = replace(options, pick=network.id)
            sweep_network(run, [TARGET.name], picked, out, SilentReporter())
        bundle = Bundle.load(out)
        yield replace(network, id=f"{network.id} {VARIANT}", onnx=bundle.file_in(VARIANT))


def row_of(network: Network, run_inputs: RunInputs, seed: int) -> Row:
    """Return the row of a network's test error, with its size."""
    size = len(lzma.compress(network.onnx.read_bytes()))
    scored = tested_on(network, TARGET, run_inputs)
    return error_row(scored, len(run_inputs.data.test), seed, {_SIZE: size})


def judge(rows: list[Row], model: str, seed: int) -> list[Row]:
    """Compare the fronts of test error and size of both sides."""
    ours, theirs = f"{model} {SEARCHED}", f"{model} {AFTERWARDS}"
    found = compared(rows, ours, theirs, seed, f"{ours} / {AFTERWARDS}", _SIZE)
    return [
        *(row for row in found if row.metric == "hypervolume_ratio"),
        *(row for row in rows if row.metric == "seconds"),
    ]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
