"""Do the networks of MCUFormer's space fit into 320 KB of memory as C code?"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from experiments.microcontroller.run import whole_tensors
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import export_onnx
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller import CSource, IntegerNetwork, read_integer_network
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.search_spaces import Architecture, vit

SPACE = vit((224, 224, 3), 1000, preset="mcuformer")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sampled", type=int, default=3, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"space": SPACE.fingerprint, "sampled": arguments.sampled})
    for seed in setting.seeds:
        rng = random.Random(seed)
        sampled = [SPACE.sample(rng) for _ in range(arguments.sampled)]
        named = {"smallest": SPACE.smallest(), "largest": SPACE.largest()}
        named |= {f"sampled {i}": network for i, network in enumerate(sampled)}
        for name, network in named.items():
            print(f"seed {seed}: {name}", flush=True)
            setting.answer(rows_of(name, network, seed, setting.work))
    setting.show()


def rows_of(name: str, network: Architecture, seed: int, folder: Path) -> list[Row]:
    """Return the memory of a network with random weights."""
    integers = quantised(network, folder)
    source, by_rows = (CSource.of(integers, "network", (), given) for given in (False, True))
    workload = SPACE.workload(network)
    values = {
        "arena_kb": (source.arena.bytes / 1024, "KB"),
        "arena_kb_by_rows": (by_rows.arena.bytes / 1024, "KB"),
        "arena_kb_of_whole_tensors": (whole_tensors(integers) / 1024, "KB"),
        "constant_kb": (source.constant_bytes / 1024, "KB"),
        "macs": (workload.macs / 1e6, "million"),
    }
    return [Row(metric, name, seed, value, unit, 1) for metric, (value, unit) in values.items()]


def quantised(network: Architecture, folder: Path) -> IntegerNetwork:
    """Return a network as an integer network."""
    channels, height, width = SPACE.input_shape(network)
    how = Preprocessing(height, width, channels, (0.5,) * channels, (0.25,) * channels)
    pixels = np.random.default_rng(0).integers(0, 256, (2, height, width, channels), np.uint8)
    model, in_int8 = folder / f"{network.id}.onnx", folder / f"{network.id}.int8.onnx"
    if not in_int8.exists():
        export_onnx(SPACE.build(network).eval(), how.input_shape, model, how(pixels), how)
        images = [how(pixels).contiguous().numpy()]
        quantize_int8(model, in_int8, images, ranges=["full"], reduce_range=False)
    return read_integer_network(in_int8, how)


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
