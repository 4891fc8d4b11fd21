"""What do better rounding, moved scales and rotations gain over plain int8 quantisation?

The smallest network of several spaces is trained alone and quantised in each way, with ranges and
rounding from 256 training images. All files are scored on the test images in ONNX Runtime, against
the same network in single precision. Weights of four bits are simulated by int8 files whose weights
have 15 levels instead of 255.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.deploy.int8.run import trained
from experiments.ptq.four_bits import LARGEST, with_four_bit_weights
from experiments.readme_table import across
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import export_onnx
from hwnas.deploy.quantization.error_compensation import compensate_rounding
from hwnas.deploy.quantization.quantize import Int8Quantizer
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.quality import Quality
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError
from hwnas.search.evaluation.converted import calibration_batches
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.split_evaluator import SplitEvaluator

VARIANT_NAMES = ("int8", "int8-gptq", "int8-equalised", "int8-rotated", "int8-combined")
SPACES = ("mobilenet", "resnet", "vit")
ACCURACY, LOSS, AGREEMENT, ERROR = "accuracy", "points lost", "agreement", "output error"
_BATCH = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spaces", nargs="+", default=list(SPACES), help="spaces of the networks")


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"spaces": arguments.spaces})
    for seed in setting.seeds:
        for space in arguments.spaces:
            if setting.answers.find(ACCURACY, f"{space} fp32", seed) is None:
                print(f"seed {seed}: {space}", flush=True)
                experiment = setting.experiment(seed, [f"space.name={space}"])
                run_inputs = RunInputs.prepare(experiment.recipe, experiment.folder)
                folder = setting.work / f"{space}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                setting.answer(list(rows_of(run_inputs, space, seed, folder)))
    print(across(setting.answers.rows))


def rows_of(run_inputs: RunInputs, space: str, seed: int, folder: Path) -> Iterator[Row]:
    """Train the smallest network of a space, quantise it in all ways and score each file."""
    architecture = run_inputs.space.smallest()
    shape = run_inputs.space.input_shape(architecture)
    network = trained(run_inputs, architecture, seed)
    plain = export_onnx(network, shape, folder / "fp32.onnx").path
    preprocessing, data = run_inputs.task.preprocessing.at(*shape[1:]), run_inputs.data
    batches = calibration_batches(data.train, preprocessing, _BATCH)
    test = SplitEvaluator(run_inputs.task, data.test, "test", preprocessing, _BATCH)
    expected = outputs_of(plain, test.inputs())
    whole = test.judge(expected, expected)
    yield Row(ACCURACY, f"{space} fp32", seed, whole.value, "fraction", whole.n)
    for name, file, about in quantised(plain, batches, folder):
        outputs = outputs_of(file, test.inputs())
        yield from scores(
            f"{space} {name}", seed, outputs, expected, test.judge(outputs, expected), about
        )


def quantised(
    plain: Path, batches: Sequence[NDArray[np.float32]], folder: Path
) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the name, the file and the description of each quantised form of a network."""
    material = VariantInputs(plain, batches, loss=lambda path: 0.0)
    for name in VARIANT_NAMES:
        try:
            made = VARIANTS[name].make(material, folder / f"{name}.onnx")
        except ArtifactError:  # nothing to equalise or to rotate in this network
            continue
        yield name, made.model, dict(made.about)
    with Int8Quantizer(plain, batches) as quantizer:
        nearest = quantizer.write(folder / "int4-weights.onnx")
        with_four_bit_weights(nearest, quantizer.prepared)
        yield "int4-weights", nearest, {}
        compensate_rounding(nearest, quantizer.prepared, batches, LARGEST)
        yield "int4-weights-gptq", nearest, {}


def scores(
    subject: str,
    seed: int,
    outputs: NDArray[Any],
    expected: NDArray[Any],
    quality: Quality,
    about: dict[str, Any],
) -> Iterator[Row]:
    """Yield accuracy lost, agreement, and squared error of outputs as a share of their variance."""
    spread = {"standard_error": 100 * quality.loss_standard_error}
    yield Row(LOSS, subject, seed, 100 * quality.loss, "", quality.n, spread, about)
    same = float((outputs.argmax(1) == expected.argmax(1)).mean())
    yield Row(AGREEMENT, subject, seed, same, "fraction", quality.n)
    error = float(np.square(outputs - expected).mean() / expected.var())
    yield Row(ERROR, subject, seed, error, "ratio", quality.n)


if __name__ == "__main__":
    folder = Path(__file__).parent
    main(folder, __doc__, work, add_options, recipe=folder / "recipe.toml")
