"""How accurate are the finalists of a job as C code, and how much memory do they take?

Each bundle of a finished run is converted to C, from its golden images. The code is compiled for
this machine and scored on the test images, which gives the bits of any other processor; its
instructions are counted on an emulated Cortex-M4.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.command import module_of, run_command
from experiments.microcontroller.run import CORE, whole_tensors
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.deploy import Bundle
from hwnas.deploy.bundles.converting import convert_bundle
from hwnas.deploy.microcontroller import CSource, read_integer_network
from hwnas.deploy.microcontroller.compiled import compiled_session
from hwnas.deploy.microcontroller.emulated import emulated
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.errors import ConfigError
from hwnas.run_folder import RunFolder
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.run_inputs import RunInputs

HERE = Path(__file__).parent
_BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {module_of(HERE)}.run", description=__doc__)
    parser.add_argument("--run", type=Path, help="finished run of images")
    parser.add_argument("--job", default="photographs, 120 minutes", help="what the run is")
    parser.add_argument("--seed", type=int, default=0, help="seed of that run")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    results = Results(arguments.out / "results.jsonl", {"job": arguments.job, "core": CORE})
    if arguments.run is None:
        raise ConfigError("give --run, the folder of a finished run")
    with RunFolder.open(arguments.run) as opened:
        recipe = opened.recipe
    if recipe.task.name != "classification":
        raise ConfigError(f"{arguments.run} is no run of image classification")
    run_inputs = RunInputs.prepare(recipe, arguments.run)
    bundles = sorted(read_bundles(arguments.run / "bundles").values(), key=lambda each: each.folder)
    for number, bundle in enumerate(bundles, start=1):
        print(f"finalist {number} of {len(bundles)}", flush=True)
        results.put(rows_of(bundle, run_inputs, bundle.architecture.id, arguments.seed))
    print(markdown(results.rows), flush=True)


def rows_of(bundle: Bundle, run_inputs: RunInputs, name: str, seed: int) -> list[Row]:
    """Return the errors, the memory and the instructions of a finalist, whose rows have a name."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Bundle.load(Path(shutil.copytree(bundle.folder, Path(folder, "bundle"))))
        converted = convert_bundle(copy, ["c"])
        code = compiled_session(converted.folder / "model.c")
        pixels = copy.golden()["images"]
        model = Path(folder, "int8.onnx")
        images = copy.preprocessing(pixels).contiguous().numpy()
        quantize_int8(copy.onnx_file, model, [images], reduce_range=False)
        integers = read_integer_network(model, copy.preprocessing)
        source = CSource.of(integers, "network", ())
        counted = emulated(source, pixels[:1], CORE)

        def in_c(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            return code.run(images)  # type: ignore[arg-type]

        errors = {
            "fp32": error_of(copy.predict, run_inputs, pixels.shape[1:]),
            "c": error_of(in_c, run_inputs, pixels.shape[1:]),
        }
    n = len(run_inputs.data.test)
    quantities: Sequence[tuple[str, float, str]] = [
        ("arena_kb", source.arena.bytes / 1024, "KB"),
        ("arena_kb_of_whole_tensors", whole_tensors(integers) / 1024, "KB"),
        ("constant_kb", source.constant_bytes / 1024, "KB"),
        ("instructions", float(counted.instructions.mean()) / 1e6, "million"),
    ]
    return [
        *(
            Row("test_error", f"{name} {form}", seed, error, "fraction", n)
            for form, error in errors.items()
        ),
        *(Row(metric, name, seed, value, unit, 1) for metric, value, unit in quantities),
    ]


def error_of(
    predict: Callable[[NDArray[np.uint8]], NDArray[np.floating]],
    run_inputs: RunInputs,
    shape: tuple[int, ...],
) -> float:
    """Return the share of test images whose class is not the one with the largest score."""
    test, wrong = run_inputs.data.test, 0
    resize = run_inputs.task.preprocessing.at(*shape[:2])
    for start in range(0, len(test), _BATCH):
        images, labels = test.take(np.arange(start, min(start + _BATCH, len(test))))
        if images.shape[1:] != shape:
            raise ConfigError(f"images of {images.shape[1:]} for a network of {resize.input_shape}")
        wrong += int((predict(images).argmax(1) != labels).sum())
    return wrong / len(test)


if __name__ == "__main__":
    main()
