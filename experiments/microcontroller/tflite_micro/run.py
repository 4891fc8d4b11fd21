"""Does planned C code take less memory than TensorFlow Lite Micro does for the same network?

Random networks with random weights become C code, and LiteRT files with the same weights and grids,
which TensorFlow Lite Micro's interpreter runs with its reference kernels.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.microcontroller.tflite_micro.interpreter import check_installed, interpreted
from experiments.microcontroller.tflite_micro.translation import litert_file
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import Target, export_onnx
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller import CSource, read_integer_network
from hwnas.deploy.microcontroller.compiled import compiled_session
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.targets.machine import versions
from hwnas.search_spaces import Architecture, SearchSpace, mobilenet, resnet

_SHAPE = (112, 112, 3)
SPACES: Mapping[str, SearchSpace] = {
    "mobilenet-large": mobilenet(_SHAPE, 5, preset="large"),
    "resnet-compact": resnet(_SHAPE, 5, preset="compact"),
    "resnet-inverted": resnet(_SHAPE, 5, preset="inverted"),
}
_FLOAT = Target.parse("cpu-onnxruntime-fp32-b1-t1")
_IMAGES, _SQUARES = 16, 8


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=int, default=2, metavar="N", help="of each space")


def work(arguments: argparse.Namespace) -> None:
    spaces = {name: space.fingerprint for name, space in SPACES.items()}
    config = {"spaces": spaces, "networks": arguments.networks, "images": _IMAGES}
    setting = Setting(arguments, config)
    check_installed()
    for seed in setting.seeds:
        for name, space in SPACES.items():
            rng = random.Random(seed)
            for number in range(arguments.networks):
                case, network = f"{name} {number}", space.sample(rng)
                if setting.answers.find("same_bits", f"{case} c-by-rows", seed) is None:
                    setting.answer(rows_of(space, network, case, seed, setting.work))
                print(f"seed {seed}: {case}", flush=True)
    print(crosstab(setting.answers.rows))


def rows_of(
    space: SearchSpace, network: Architecture, case: str, seed: int, folder: Path
) -> list[Row]:
    """Return memory and outputs of a network with random weights, as C code and interpreted."""
    channels, height, width = space.input_shape(network)
    how = Preprocessing(height, width, channels, (0.5,) * channels, (0.25,) * channels)
    pixels = images_of_squares(height, width, channels, seed)
    model, quantised = exported(space, network, how, pixels, seed, folder)
    expected = open_session(model, _FLOAT).run(how(pixels).contiguous().numpy())
    joined = read_integer_network(quantised, how)
    single = read_integer_network(quantised, how, join_tables=False)
    image, rows = (CSource.of(joined, "network", (), by_rows) for by_rows in (False, True))
    in_c, in_c_by_rows = (compiled(source, pixels, folder) for source in (image, rows))
    inputs = single.steps[0].operator.run(pixels)
    files = [litert_file(single, same_padding) for same_padding in (False, True)]
    padded, same = (interpreted(file, inputs) for file in files)
    other = joined.real(padded.outputs.reshape(in_c.shape))
    apart = np.abs(padded.outputs.reshape(in_c.shape).astype(int) - in_c).max()
    values = {
        ("activation_kb", "c"): (image.arena.bytes / 1024, "KB"),
        ("activation_kb", "c-by-rows"): (rows.arena.bytes / 1024, "KB"),
        ("activation_kb", "tflite-micro"): (same.activation_bytes / 1024, "KB"),
        ("activation_kb", "tflite-micro-padded"): (padded.activation_bytes / 1024, "KB"),
        ("arena_kb", "tflite-micro"): (same.arena_bytes / 1024, "KB"),
        ("constant_kb", "c"): (image.constant_bytes / 1024, "KB"),
        ("constant_kb", "tflite-micro"): (len(files[1]) / 1024, "KB"),
        ("error", "c"): (error(joined.real(in_c), expected), "fraction"),
        ("error", "tflite-micro-padded"): (error(other, expected), "fraction"),
        ("steps_from_c", "tflite-micro-padded"): (float(apart), "steps"),
        ("same_bits", "c-by-rows"): (float((in_c_by_rows == in_c).mean()), "fraction"),
    }
    details = {"architecture": network.to_json(), "macs": space.workload(network).macs}
    details["versions"] = dict(versions(("tflite-micro",)))
    return [
        Row(metric, f"{case} {way}", seed, value, unit, len(pixels), {}, details)
        for (metric, way), (value, unit) in values.items()
    ]


def images_of_squares(height: int, width: int, channels: int, seed: int) -> NDArray[np.uint8]:
    """Return images (N, H, W, C) of squares in random colours, so that outputs differ."""
    numbers = np.random.default_rng(seed)
    colours = numbers.integers(0, 256, (_IMAGES, _SQUARES, _SQUARES, channels), np.uint8)
    rows, columns = (np.arange(side) * _SQUARES // side for side in (height, width))
    found: NDArray[np.uint8] = colours[:, rows][:, :, columns]
    return found


def exported(
    space: SearchSpace,
    network: Architecture,
    how: Preprocessing,
    pixels: NDArray[np.uint8],
    seed: int,
    folder: Path,
) -> tuple[Path, Path]:
    """Return a network with random weights as ONNX files, in single precision and in int8."""
    model, quantised = (folder / f"{network.id}-{seed}{end}" for end in (".onnx", ".int8.onnx"))
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    module = normalised(space.build(network), how(pixels))
    export_onnx(module, how.input_shape, model, how(pixels), how)
    images = how(pixels).contiguous().numpy()
    quantize_int8(model, quantised, [images], ranges=["full"], reduce_range=False)
    return model, quantised


def normalised(module: nn.Module, images: Tensor) -> nn.Module:
    """Return a network whose batch normalisations have the statistics of images.

    Without them, the outputs of random weights hardly depend on the image.
    """
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.momentum = 1.0
    with torch.no_grad():
        module.train()(images)
    return module.eval()


def compiled(source: CSource, pixels: NDArray[np.uint8], folder: Path) -> NDArray[np.int8]:
    """Return the outputs of C code, compiled for this machine."""
    (folder / "network.c").write_text(source.code)
    (folder / "network.h").write_text(source.header)
    outputs = compiled_session(folder / "network.c").run(pixels)  # type: ignore[arg-type]
    grid = source.network.tensors[source.network.output].grid
    return grid.nearest(outputs)


def error(outputs: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the root mean squared error over the spread of the expected outputs over images."""
    spread = np.sqrt(np.square(expected - expected.mean(0)).mean())
    return float(np.sqrt(np.square(outputs - expected).mean()) / spread)


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
