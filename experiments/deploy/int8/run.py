"""How much accuracy do post-training, mixed-precision and fine-tuned int8 quantisation cost?

A few networks of a space are each trained alone. Their variants are made as by `hwnas sweep`:
ranges come from training images, the layers of the mixed variant are chosen on validation images,
and fine-tuning uses training images. All variants are scored on the test images in ONNX Runtime.
The loss is relative to the same network in single precision on the same images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from experiments.readme_table import across
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import export_onnx
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ConfigError
from hwnas.search.evaluation.converted import calibration_batches
from hwnas.search.evaluation.ranking import spread_over_macs
from hwnas.search.evaluation.scoring import recalibrate
from hwnas.search.training import NetworkStep, fit
from hwnas.search_spaces import Architecture
from hwnas.stages.finalists.variant_tuning import retraining
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.split_evaluator import SplitEvaluator

LOSS, ACCURACY = "loss", "test_accuracy"
EIGHT_BITS = ("int8", "int8-mixed", "int8-qat")
_BATCH = 64
_RECALIBRATION_IMAGES = 2048


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--networks", type=int, default=3, help="number of networks, spread over MACs"
    )
    parser.add_argument("--pool", type=int, default=100, help="random networks to choose from")
    parser.add_argument(
        "--max-loss", type=float, default=0.005, help="largest loss of the mixed variant"
    )
    parser.add_argument("--case", default="fashion_mnist", help="name of space and images in rows")


def work(arguments: argparse.Namespace) -> None:
    if arguments.networks < 1 or arguments.pool < arguments.networks:
        raise ConfigError("expected --networks of at least 1, and a --pool of at least as many")
    names = ("networks", "pool", "max_loss", "case")
    setting = Setting(arguments, {name: getattr(arguments, name) for name in names})
    for seed in setting.seeds:
        run_inputs = setting.run_inputs(seed)
        networks = spread_over_macs(run_inputs.space, arguments.networks, arguments.pool)
        for place, network in enumerate(networks):
            subject = f"{arguments.case} {place}"
            if setting.observations.find(ACCURACY, subject, seed) is None:
                print(f"seed {seed}: {subject}", flush=True)
                folder = setting.work / f"{arguments.case}-{place}-{seed}"
                rows = observed(run_inputs, network, arguments.max_loss, folder, subject, seed)
                setting.observations.put(rows)
        setting.answer(summary(setting.observations.rows, arguments.case, seed))
    print(across(setting.answers.rows))


def observed(
    run_inputs: RunInputs,
    architecture: Architecture,
    max_loss: float,
    folder: Path,
    subject: str,
    seed: int,
) -> list[Row]:
    """Train one network, make its variants and score them on the test images."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = run_inputs.space.input_shape(architecture)
    network = trained(run_inputs, architecture, seed)
    plain = export_onnx(network, shape, folder / "fp32.onnx").path
    preprocessing, data = run_inputs.task.preprocessing.at(*shape[1:]), run_inputs.data
    evaluator = partial(SplitEvaluator, run_inputs.task, preprocessing=preprocessing, batch=_BATCH)
    validation, test = evaluator(data.validation, "validation"), evaluator(data.test, "test")
    expected = {each: outputs_of(plain, each.inputs()) for each in (validation, test)}

    def loss(model: Path) -> float:
        return validation.judge(outputs_of(model, validation.inputs()), expected[validation]).loss

    tuning = run_inputs.recipe.fine_tuning
    if tuning is None:
        raise ConfigError("the recipe does not fine-tune; set deploy.finetune_epochs above 0")
    material = VariantInputs(
        plain,
        calibration_batches(data.train, preprocessing, _BATCH),
        loss,
        max_loss,
        retraining(run_inputs, architecture, network.state_dict(), tuning),
    )
    whole = test.judge(expected[test], expected[test])
    spread = {"standard_error": whole.standard_error}
    about = {"architecture": architecture.to_json()}
    rows = [Row(ACCURACY, subject, seed, whole.value, "fraction", whole.n, spread, about)]
    for name in EIGHT_BITS:
        made = VARIANTS[name].make(material, folder / f"{name}.onnx")
        found = test.judge(outputs_of(made.model, test.inputs()), expected[test])
        spread = {"standard_error": found.loss_standard_error}
        rows.append(
            Row(
                LOSS, f"{subject} {name}", seed, found.loss, "fraction", found.n, spread, made.about
            )
        )
    return rows


def trained(run_inputs: RunInputs, architecture: Architecture, seed: int) -> nn.Module:
    """Train a network of the space from scratch, as the recipe says."""
    space, task, data = run_inputs.space, run_inputs.task, run_inputs.data
    shape, config = space.input_shape(architecture), run_inputs.recipe.train
    torch.manual_seed(seed)
    network = space.build(architecture).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fit(network, NetworkStep(network, task, shape), data.train, config, seed)
    recalibrate(network, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    return network


def summary(rows: Sequence[Row], case: str, seed: int) -> list[Row]:
    """Return each variant's mean loss over the networks of a seed, and the range over them."""
    answers = []
    for name in EIGHT_BITS:
        of_variant = [
            100 * row.value
            for row in rows
            if (row.metric, row.seed) == (LOSS, seed)
            and row.subject.startswith(f"{case} ")
            and row.subject.endswith(f" {name}")
            and row.value is not None
        ]
        spread = {"least": min(of_variant), "most": max(of_variant)}
        mean = fmean(of_variant)
        answers.append(
            Row("points lost", f"{case} {name}", seed, mean, "", len(of_variant), spread)
        )
    return answers


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options)
