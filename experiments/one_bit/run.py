"""How much accuracy do weights and activations of one bit cost, by method?

The smallest network of a convolutional and of a transformer space is trained from scratch in single
precision, in eight bits, with weights of one bit, and with weights and activations of one bit by
each method. Layers of one bit are computed by XNOR and counts of bits, too, and compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from experiments.in_turn import seconds_in_turn
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.deploy import export_onnx
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.converted import Executed, calibration_batches
from hwnas.search.evaluation.evaluate import train_network
from hwnas.search.evaluation.scoring import score
from hwnas.search.training import NetworkStep
from hwnas.search_spaces.layers.binarisers import BINARISATIONS, Binarisation, signs
from hwnas.search_spaces.layers.binary_product import PackedSigns, xnor_product
from hwnas.search_spaces.layers.quantisers import FLOAT_BITS, ONE_BIT
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace
from hwnas.search_spaces.quantised.attached import quantised_layers
from hwnas.stages.run_inputs import RunInputs

ACCURACY, IN_ORT, DIFFERENT, SLOWER = (
    *("accuracy", "accuracy in ONNX Runtime", "different products"),
    "time of XNOR over float32",
)
SPACES = ("resnet", "vit")
_RECALIBRATION_IMAGES = 2048
_IMAGES, _ROUNDS = 8, 20


@dataclass(frozen=True)
class Format:
    """Bits of weights and inputs, and the method for one bit."""

    weight_bits: int
    activation_bits: int
    binarisation: Binarisation = "xnor"


FORMATS: Mapping[str, Format] = {
    "fp32": Format(FLOAT_BITS, FLOAT_BITS),
    "8-bit": Format(8, 8),
    "1-bit-weights": Format(1, 8),
    **{method: Format(1, 1, method) for method in BINARISATIONS},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"spaces": list(SPACES)})
    for seed in setting.seeds:
        for space in arguments.spaces:
            experiment = setting.experiment(seed, [f"space.name={space}"])
            run_inputs = RunInputs.prepare(experiment.recipe, experiment.folder)
            missing = [
                (name,)
                for name in FORMATS
                if setting.answers.find(ACCURACY, f"{space} {name}", seed) is None
            ]
            with cores(run_inputs.recipe) as at_once:
                shared = run_inputs, space, seed, setting.work.absolute()
                for rows in map_tasks(observed, shared, missing, at_once):
                    print(f"seed {seed}: {rows[0].subject}", flush=True)
                    setting.answer(rows)
    print(crosstab(setting.answers.rows))


def observed(shared: tuple[RunInputs, str, int, Path], name: str) -> list[Row]:
    """Train and test a network in one format."""
    i, space, seed, folder = shared
    network, bytes_ = trained(i, FORMATS[name], seed)
    shape, subject = i.space.input_shape(i.space.smallest()), f"{space} {name}"
    found = score(network, i.task, i.data.test, shape, "test")
    error, accuracy = found.standard_errors["accuracy"], found.values["accuracy"]
    details = {"standard_error": error, "weight_bytes": bytes_}
    rows = [Row(ACCURACY, subject, seed, accuracy, "fraction", found.n, details=details)]
    if name != "fp32":
        preprocessing = i.task.preprocessing.at(*shape[1:])
        folder.mkdir(parents=True, exist_ok=True)
        plain = folder / f"{space}-{name}-{seed}.onnx"
        export_onnx(network, shape, plain, traceable=i.space.traceable)
        batches = calibration_batches(i.data.train, preprocessing, 32)
        int8 = quantize_int8(plain, plain.with_suffix(".int8.onnx"), batches)
        found = score(Executed(int8), i.task, i.data.test, shape, "test")
        rows.append(Row(IN_ORT, subject, seed, found.values["accuracy"], "fraction", found.n))
    if FORMATS[name].activation_bits == ONE_BIT:
        images, _ = i.data.test.first(_IMAGES).take(np.arange(_IMAGES))
        inputs = i.task.preprocessing.at(*shape[1:])(torch.from_numpy(images))
        rows.extend(products(network, inputs, subject, seed))
    return rows


def trained(i: RunInputs, wanted: Format, seed: int) -> tuple[nn.Module, int]:
    """Return the smallest network, trained with these bits, and the bytes of its packed weights.

    The first and the last block have eight bits, if others have fewer.
    """
    bits = {"weight_bits": wanted.weight_bits, "activation_bits": wanted.activation_bits}
    options = {name: tuple(sorted({each, 8})) for name, each in bits.items()}
    if len(options["weight_bits"]) == len(options["activation_bits"]) == 1:
        options["weight_bits"] = (4, 8)  # a space has two formats at least
    config = QuantisationConfig(**options, binarisation=wanted.binarisation)
    space = QuantisedSpace(i.space, config)
    values = space.smallest().as_dict()
    known = {choice.name: choice.options for choice in space.choices}
    for choice in values:
        each = bits.get(choice.rpartition(".")[2])
        if each in known[choice]:
            values[choice] = each
    architecture = space.architecture(values)
    torch.manual_seed(seed)
    network = space.build(architecture).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    training = i.recipe.train
    step = NetworkStep.of(network, i.task, space.input_shape(architecture), training)
    train_network(step, i.data, training, seed, recalibration_images=_RECALIBRATION_IMAGES)
    return network, space.workload(architecture).weight_bytes


def products(network: nn.Module, images: Tensor, subject: str, seed: int) -> Iterator[Row]:
    """Compare the products of layers of one bit by XNOR with those of whole numbers."""
    different, count, ratios = 0, 0, []
    for left, right in factors(network, images):
        packed, weights = PackedSigns.of(left), PackedSigns.of(right)
        found = xnor_product(packed, weights)
        different += int((found != left.astype(np.int64) @ right.T.astype(np.int64)).sum())
        count += found.size
        plain, transposed = torch.from_numpy(left), torch.from_numpy(right.T.copy())
        ways = partial(xnor_product, packed, weights), partial(torch.matmul, plain, transposed)
        by_xnor, by_float = seconds_in_turn(ways, _ROUNDS)
        ratios.append(by_xnor / by_float)
    yield Row(DIFFERENT, subject, seed, different, "", count)
    yield Row(SLOWER, subject, seed, median(ratios), "ratio", len(ratios))


def factors(
    network: nn.Module, images: Tensor
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the signs that each layer of one bit multiplies: (N, K) of inputs, (M, K) of weights.

    Positions of padding are zero. Grouped convolutions are left out.
    """
    seen: list[tuple[Any, Tensor]] = []
    handles = [
        layer.register_forward_hook(lambda layer, inputs, _: seen.append((layer, inputs[0])))
        for _, layer, of_weight, of_input in quantised_layers(network)
        if of_weight.precision.weight_bits == of_input.precision.activation_bits == ONE_BIT
        and getattr(layer, "groups", 1) == 1
    ]
    with torch.no_grad():
        network.eval()(images)
        for handle in handles:
            handle.remove()
        for layer, inputs in seen:
            left = signs(inputs)
            if isinstance(layer, nn.Conv2d):
                sizes = layer.kernel_size, layer.dilation, layer.padding, layer.stride
                left = functional.unfold(left, *sizes).mT
            rows = left.flatten(0, -2).contiguous()
            yield rows.numpy(), signs(layer.weight).flatten(1).contiguous().numpy()


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
