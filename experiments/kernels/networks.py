"""Whole networks, as a search finds them: through our kernels, and as PyTorch runs them.

Our networks are timed in float16 and in int8, interleaved. PyTorch has no integer convolutions on
GPUs, so its best float16 version is the competitor of both; TensorRT's int8 engine is a further
competitor of int8.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.deploy.networks import SPACES, untrained
from experiments.kernels.benchmark import Case
from experiments.kernels.compiler import FULL, MODES, all_cores, compiled, rehearsing
from experiments.kernels.engines import engine, int8_engine
from experiments.kernels.place import CACHES, Place
from hwnas.deploy.export.conv_norm import fold_norms
from hwnas.deploy.export.exporters import to_onnx
from hwnas.deploy.matching import MatchedNetwork, decided, matched
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.race import fair, raced, why
from hwnas.kernels.tuning.tuned import KERNEL
from hwnas.search_spaces import SearchSpace, hybrid, mobilenet, vit

__all__ = [
    "BATCHES",
    "FORMATS",
    "NETWORKS",
    "WORDS",
    "Measured",
    "export_network",
    "measure_network",
    "rehearse_network",
]

BATCHES = (1, 8, 64)
NETWORKS = {
    "mobilenet-224": ("mobilenet", 0),
    "mobilenet-160": ("mobilenet", 1),
    "hybrid-224": ("hybrid", 5),
    "hybrid-160": ("hybrid", 1),
    "vit-224": ("vit", 5),
}
"""Space and seed of each network; the resulting image size is in its name."""
WORDS = {
    "eager": "the module in channels-last, batch normalisations folded",
    **{name: f"{words} of the same module" for name, words in MODES.items()},
    "tensorrt": "TensorRT's engine of the ONNX file in float16",
    "tensorrt int8": "TensorRT's engine of the ONNX file, quantised for it: with no zero points",
}
FORMATS = {"float16": torch.float16, "int8": torch.int8}
DTYPE = torch.float16
"""Data type of competitors, and in int8 of all values that are not integers."""
_TUNED = (1, 8)  # batch sizes; the tuning for 8 is close enough for 64
_TOY = {"mobilenet": mobilenet, "hybrid": hybrid, "vit": vit}
_TOLERANCE = {"float16": 0.02, "int8": 0.15}
"""Tolerances as shares of the largest output. Networks of half precision deviate by some
thousandths. In int8, a value that is rounded the other way deviates by one step, and the values
computed from it deviate by more."""


@dataclass(frozen=True)
class Measured:
    """Network at a batch size, timed against one mode of PyTorch's compiler."""

    network: str
    batch: int
    mode: str


def export_network(place: Place, name: str) -> dict[str, Any]:
    """Write a network as ONNX; return its description and the operator cases of its matching."""
    space, architecture, network = _made(place, name)
    shape = space.input_shape(architecture)
    model, _, _ = to_onnx(_folded(network), shape)
    plain = _file(place, name, "float16")
    plain.write_bytes(model.SerializeToString())
    quantize_int8(plain, _file(place, name, "int8"), random_batches(shape, 1))
    asked: dict[tuple[object, ...], Case] = {}
    for which in FORMATS:
        module = OnnxModule.load(_file(place, name, which)).eval()
        for batch in BATCHES[:1] if place.simulated else _TUNED:

            def decide(
                operator: Operator, sizes: Sizes, dtype: torch.dtype, n: int = batch
            ) -> KernelChoice:
                case = Case(operator.name, dict(sizes), n, dtype)
                if operator.name in OPERATORS:  # chains have no benchmark
                    asked.setdefault((operator.name, dtype, *sizes.items()), case)
                return KernelChoice(operator.default_config(sizes, dtype))

            matched(module, batch, DTYPE, decide)
    workload = space.workload(architecture)
    return {
        "asked": list(asked.values()),
        "about": {
            "input_shape": list(shape),
            "macs": workload.macs,
            "params": workload.params,
            "architecture": architecture.to_json(),
        },
    }


def rehearse_network(place: Place, task: Measured) -> dict[str, Any]:
    """Compile kernels and expressions, so that they are cached when times are taken."""
    with fair(), rehearsing(task.mode):
        images = _images(place, task)
        for which in FORMATS:
            _ours(place, task, which)(images)
        compiled(_in_half(_rival(place, task)), task.mode, place)(images)
    return {}


def measure_network(place: Place, task: Measured) -> dict[str, Any]:
    """Time a network through our kernels, in both formats, interleaved with competitors.

    Returns:
        The results by format.
    """
    with fair(), all_cores(place) if task.mode == FULL else contextlib.nullcontext():
        images = _images(place, task)
        ours = {which: _ours(place, task, which) for which in FORMATS}
        found: dict[str, Any] = {}
        for which, network in ours.items():
            error = _error(network(images), _truth(place, task, which, images))
            found[which] = {"error": error, **_told(network)}
        right = [which for which in ours if found[which]["error"] <= _TOLERANCE[which]]
        if not right:
            return found
        contenders: dict[str, Callable[[], object]] = {
            which: partial(ours[which], images) for which in right
        }
        rivals, absent = _rivals(place, task, images)
        times = {}
        for cache in CACHES:
            times[cache], more = raced({**contenders, **rivals}, place.timer(cache))
            absent |= more
    timing = {cache: place.timer(cache).description for cache in CACHES}
    for which in right:
        others = {*FORMATS} - {which} | ({"tensorrt int8"} if which != "int8" else set())
        own = {cache: _as_ours(which, each, others) for cache, each in times.items()}
        why_not = {KERNEL if k == which else k: v for k, v in absent.items() if k not in others}
        found[which] |= {"times": own, "timing": timing, "absent": why_not}
    return found


def _rivals(
    place: Place, task: Measured, images: Tensor
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return the competitors that run, and the reasons why others do not."""
    module = _in_half(_rival(place, task))
    plain = _file(place, task.network, "float16")
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "eager": lambda: partial(module, images),
        task.mode: lambda: partial(compiled(module, task.mode, place), images),
        "tensorrt": lambda: engine(plain, images),
        "tensorrt int8": lambda: int8_engine(plain, images),
    }
    rivals, absent = {}, {}
    for name, make in makers.items():
        try:
            run = make()
            run()
            rivals[name] = run
        except ModuleNotFoundError:
            absent[name] = "absent"
        except Exception as problem:  # each library raises errors of its own
            absent[name] = why(problem)
    return rivals, absent


def _as_ours(which: str, times: Mapping[str, Times], others: Container[str]) -> dict[str, Any]:
    """Return times by name without some; those of one of our formats are named as ours."""
    return {
        KERNEL if name == which else name: each.to_json()
        for name, each in times.items()
        if name not in others
    }


def _made(place: Place, name: str) -> tuple[SearchSpace, Any, nn.Module]:
    """Return space, architecture and network; smaller ones where kernels are interpreted."""
    family, seed = NETWORKS[name]
    space = _TOY[family]((8, 8, 1), 10) if place.simulated else SPACES[family]()
    architecture = space.sample(random.Random(seed))
    return space, architecture, untrained(space, architecture)


def _file(place: Place, name: str, which: str) -> Path:
    """Return the path of a network's ONNX file.

    The file is quantised for int8, and in single precision for float16, which is rounded where it
    runs.
    """
    return place.work / f"{name}-{which}.onnx"


def _images(place: Place, task: Measured) -> Tensor:
    shape = OnnxModule.load(_file(place, task.network, "float16")).input_shape
    return torch.randn(task.batch, *shape, generator=torch.Generator().manual_seed(0)).to(
        place.device
    )


def _ours(place: Place, task: Measured, which: str) -> MatchedNetwork:
    """Return the network through our kernels."""
    module = OnnxModule.load(_file(place, task.network, which)).eval()
    return MatchedNetwork(matched(module, task.batch, DTYPE, decided), DTYPE, place.device)


def _rival(place: Place, task: Measured) -> nn.Module:
    """Return the module with batch normalisations folded."""
    _, _, module = _made(place, task.network)
    return _folded(module).to(place.device)


def _truth(place: Place, task: Measured, which: str, images: Tensor) -> Tensor:
    """Return outputs in single precision: of the module, or for int8 of the quantised file."""
    if which != "int8":
        _, _, module = _made(place, task.network)
    else:
        module = OnnxModule.load(_file(place, task.network, which)).eval()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        outputs: Tensor = module.to(place.device)(images)
    return outputs


def _folded(network: nn.Module) -> nn.Module:
    """Fold batch normalisations into the convolutions before them, and return the network."""
    fold_norms(network)
    return network


def _in_half(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a half-precision module that takes and gives float32, as ours does."""
    module = module.to(DTYPE, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run(images: Tensor) -> Tensor:
        outputs: Tensor = module(images.to(DTYPE, memory_format=torch.channels_last)).float()
        return outputs

    return run


def _error(outputs: Tensor, truth: Tensor) -> float:
    """Return the largest error as a share of the largest output; NaN if an output is NaN."""
    return float((outputs - truth).abs().max() / truth.abs().max())


def _told(network: MatchedNetwork) -> dict[str, Any]:
    """Return the operators used, the nodes left to PyTorch, and the operators' bytes and MACs."""
    work = [
        each.call.operator.work(each.sizes, each.call.type_in(DTYPE)) for each in network.chosen
    ]
    return {
        "operators": dict(network.counts),
        "in_torch": {f"{kind}: {reason}": n for (kind, reason), n in network.left.items()},
        "notes": sorted({each.choice.note for each in network.chosen}),
        "moved_bytes": sum(each.moved_bytes for each in work),
        "macs": sum(each.macs for each in work),
    }
