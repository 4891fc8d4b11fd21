"""What does C code in integers cost on a microcontroller, and can that be predicted?

Random networks become C code, which runs on an emulated Cortex-M4. Their instructions are counted,
and predicted from ten networks; their memory is that of the plan, beside a plan of whole tensors.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.foretold import judge
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.timed_networks import networks_to_time
from hwnas.deploy import Target, export_onnx
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller import CSource, IntegerNetwork, read_integer_network
from hwnas.deploy.microcontroller.arena import planned
from hwnas.deploy.microcontroller.emulated import emulated
from hwnas.deploy.microcontroller.schedule import Stream
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.runtimes import open_session
from hwnas.search_spaces import Architecture, SearchSpace, mobilenet, vit

SPACES: Mapping[str, SearchSpace] = {
    "mobilenet": mobilenet((64, 64, 3), 10, preset="small"),
    "vit": vit((64, 64, 3), 10, preset="small"),
}
CORE = "cortex-m4"
TARGET = Target.parse("cpu-onnxruntime-int8-b1-t1")
_LEARNED, _ASKED = "learned", "asked"
_IMAGES, _RUNS = 16, 2


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learned", type=int, default=10, metavar="N")
    parser.add_argument("--asked", type=int, default=20, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    counts = {_LEARNED: arguments.learned, _ASKED: arguments.asked}
    spaces = {name: space.fingerprint for name, space in SPACES.items()}
    setting = Setting(arguments, {"spaces": spaces, "core": CORE, "networks": counts})
    for seed in setting.seeds:
        for name in SPACES:
            if not setting.observed(name, seed):
                observe(setting, name, seed, counts)
            setting.answer(answers(setting, name, seed))
    setting.show()


def observe(setting: Setting, name: str, seed: int, counts: Mapping[str, int]) -> None:
    """Count the instructions and the memory of the networks of a seed."""
    space, rng = SPACES[name], random.Random(seed)
    roles = {
        _LEARNED: networks_to_time(space, TARGET.name, counts[_LEARNED], seed),
        _ASKED: [space.sample(rng) for _ in range(counts[_ASKED])],
    }
    rows = []
    for role, some in roles.items():
        for done, network in enumerate(some, start=1):
            rows.append(row_of(space, network, seed, f"{name} {role} ", role, setting.work))
            print(f"seed {seed}: {name}, {role}, {done}/{len(some)}", flush=True)
    setting.observations.put(rows)


def row_of(
    space: SearchSpace, network: Architecture, seed: int, prefix: str, role: str, folder: Path
) -> Row:
    """Return the instructions of a network with random weights, with its memory."""
    channels, height, width = space.input_shape(network)
    how = Preprocessing(height, width, channels, (0.5,) * channels, (0.25,) * channels)
    numbers = np.random.default_rng(0)
    pixels = numbers.integers(0, 256, (_IMAGES, height, width, channels), np.uint8)
    images = how(pixels).contiguous().numpy()
    model, quantised = folder / f"{network.id}.onnx", folder / f"{network.id}.int8.onnx"
    if not model.exists():
        export_onnx(space.build(network).eval(), how.input_shape, model, how(pixels), how)
    if not quantised.exists():
        quantize_int8(model, quantised, [images], reduce_range=False)
    integers = read_integer_network(quantised, how)
    source = CSource.of(integers, "network", ())
    found = emulated(source, pixels[:_RUNS], CORE)
    own = integers.run(pixels)
    step = integers.tensors[integers.output].scale
    other = open_session(quantised, TARGET).run(images)
    workload = space.workload(network)
    return Row(
        "instructions",
        f"{prefix}{network.id}",
        seed,
        float(found.instructions.mean()) / 1e6,
        "million",
        _RUNS,
        {},
        {
            "role": role,
            "contended": False,
            "same_bits": float((found.outputs == own[:_RUNS]).mean()),
            "steps_from_onnx_runtime": float(np.abs(integers.real(own) - other).max() / step),
            "arena_bytes": source.arena.bytes,
            "arena_bytes_of_whole_tensors": whole_tensors(integers),
            "constant_bytes": source.constant_bytes,
            "macs": workload.macs,
            "params": workload.params,
            "architecture": network.to_json(),
        },
    )


def whole_tensors(network: IntegerNetwork) -> int:
    """Return the memory of a plan in which each step works on whole tensors."""
    return planned(network, [Stream.of(step) for step in network.steps]).bytes


def answers(setting: Setting, name: str, seed: int) -> list[Row]:
    """Return errors of predictions, memory, and agreement of outputs."""
    known, asked = (
        [row for row in setting.observed(name, seed) if row.details["role"] == role]
        for role in (_LEARNED, _ASKED)
    )
    judged = judge(SPACES[name], TARGET, known, asked, seed, f"{name} ")
    found = [row for row in judged if row.metric in ("spearman", "median_error")]

    def values(key: str) -> np.ndarray:
        return np.array([row.details[key] for row in asked], dtype=float)

    shares = values("arena_bytes") / values("arena_bytes_of_whole_tensors")
    quantities: Sequence[tuple[str, float, str]] = [
        ("same_bits", float(values("same_bits").min()), "fraction"),
        ("steps_from_onnx_runtime", float(values("steps_from_onnx_runtime").max()), "steps"),
        ("arena_over_whole_tensors", float(np.median(shares)), "ratio"),
        ("arena_kb", float(np.median(values("arena_bytes"))) / 1024, "KB"),
    ]
    found += [Row(key, name, seed, value, unit, len(asked)) for key, value, unit in quantities]
    return found


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
