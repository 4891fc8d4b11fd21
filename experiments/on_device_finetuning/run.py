"""What accuracy does fine-tuning reach on shifted images within a memory limit?

A small network is trained on Fashion-MNIST, exported, and fine-tuned on a few shifted images: the
last layer, all biases, everything, or what a plan chooses within a limit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.own_models.models import MODELS
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.finetuning.choice import chosen_scheme
from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.contribution import measured_contributions
from hwnas.deploy.finetuning.joint_graph import JointGraph, trace_network
from hwnas.deploy.finetuning.memory import TrainingMemory
from hwnas.deploy.finetuning.plan import training_memory
from hwnas.deploy.finetuning.scheme import UpdateScheme, bias_only, full, last_layer
from hwnas.deploy.finetuning.training import Batches, FineTuningSettings, fine_tune
from hwnas.deploy.onnx.trainable import OnnxNetwork, trainable_network
from hwnas.search import Split
from hwnas.search.evaluation.scoring import Evaluation, recalibrate, score
from hwnas.search.training import NetworkStep, fit
from hwnas.stages.deployment.finetuning import random_batches
from hwnas.stages.run_inputs import RunInputs

ACCURACY, MEMORY = "accuracy", "memory"
SHAPE, OUTPUTS, WIDTH = (1, 28, 28), 10, 0.5
BATCH, HELD_OUT = 8, 256
RATES = (0.003, 0.01, 0.03)  # each method has the one that is best on validation images
LIMITS = {"planned-25": (0.25, 32), "planned-50": (0.5, 32), "planned-25-4bit": (0.25, 4)}
"""Memory between those of the last layer and of everything, as a share; bits of activations."""
Pixels = NDArray[np.uint8]


def inverted(images: Pixels) -> Pixels:
    return 255 - images


def faint(images: Pixels) -> Pixels:
    return (images // 4 + 96).astype(np.uint8)


def blurred(images: Pixels) -> Pixels:
    """Return the mean of 5 x 5 neighbours."""
    padded = np.pad(images.astype(np.uint16), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (1, 2))
    return windows.mean((-1, -2)).astype(np.uint8)


SHIFTS: Mapping[str, Callable[[Pixels], Pixels]] = {
    "inverted": inverted,
    "faint": faint,
    "blurred": blurred,
}


@dataclass(frozen=True, eq=False)
class Case:
    """Exported network of a seed, and shifted images to fine-tune it on."""

    shift: str
    seed: int
    steps: int
    run_inputs: RunInputs
    file: Path
    train: Split
    validation: Split
    test: Split

    @classmethod
    def of(
        cls, shift: str, seed: int, arguments: argparse.Namespace, i: RunInputs, file: Path
    ) -> Case:
        """Return the case of a shift."""
        change, data = SHIFTS[shift], i.data
        splits = (data.train.first(arguments.images), data.validation, data.test)
        return cls(shift, seed, arguments.steps, i, file, *(shifted(s, change) for s in splits))

    @property
    def network(self) -> OnnxNetwork:
        """The network with its weights before the fine-tuning."""
        return trainable_network(self.file)

    @cached_property
    def graph(self) -> JointGraph:
        """Joint graph of the network."""
        return trace_network(self.network, SHAPE, BATCH)

    def batches(self) -> Batches:
        """Return the shifted training images, in the same order each time."""
        preprocessing = self.run_inputs.task.preprocessing.at(*SHAPE[1:])
        return random_batches(self.train, preprocessing, BATCH, self.seed)

    def scored(self, network: nn.Module, split: Split) -> Evaluation:
        """Return the scores of a network on shifted images."""
        return score(network, self.run_inputs.task, split, SHAPE, "test")

    def memory(self, scheme: UpdateScheme, bits: int = 32) -> TrainingMemory:
        """Return the predicted memory of a scheme."""
        return training_memory(compile_scheme(self.graph, scheme, bits), "sgd")

    def rows(self, method: str, scheme: UpdateScheme | None, bits: int = 32) -> list[Row]:
        """Return accuracy and memory of a method; without a scheme, nothing is trained."""
        print(f"seed {self.seed}: {self.shift} {method}", flush=True)
        subject, network, rate = f"{self.shift} {method}", self.network, 0.0
        if scheme is not None:
            tuned = {rate: self.tuned(scheme, bits, rate) for rate in RATES}
            rate = max(RATES, key=lambda each: self.accuracy(tuned[each], self.validation))
            network = tuned[rate]
        found = self.scored(network, self.test)
        spread = {"standard_error": found.standard_errors[ACCURACY]}
        value = found.values[ACCURACY]
        details = {"rate": rate, "scheme": {} if scheme is None else scheme.to_json()}
        rows = [Row(ACCURACY, subject, self.seed, value, "fraction", found.n, spread, details)]
        if scheme is not None:
            memory = self.memory(scheme, bits)
            size = memory.total_bytes / 2**20
            rows.append(Row(MEMORY, subject, self.seed, size, "MB", 1, details=memory.to_json()))
        return rows

    def accuracy(self, network: nn.Module, split: Split) -> float:
        """Return the accuracy of a network on shifted images."""
        return self.scored(network, split).values[ACCURACY]

    def tuned(self, scheme: UpdateScheme, bits: int, rate: float) -> nn.Module:
        """Return the network, fine-tuned by a scheme."""
        network = self.network
        program = compile_scheme(self.graph, scheme, bits)
        fine_tune(network, program, self.batches(), FineTuningSettings(self.steps, rate))
        return network

    def planned(self) -> Iterator[tuple[str, UpdateScheme, int]]:
        """Yield the schemes that are chosen within limits, with the bits of activations."""
        preprocessing = self.run_inputs.task.preprocessing.at(*SHAPE[1:])
        images, classes = self.validation.take(np.arange(min(HELD_OUT, len(self.validation))))
        held_out = [(preprocessing(images).contiguous(), torch.from_numpy(classes))]
        probe = FineTuningSettings(8, 0.01)
        found = measured_contributions(self.network, self.graph, self.batches, held_out, probe)
        layers = self.graph.layers
        least, most = (self.memory(each(layers)).total_bytes for each in (last_layer, full))
        for method, (share, bits) in LIMITS.items():
            limit = round(least + share * (most - least))
            cost = partial(self.total_bytes, bits)
            yield method, chosen_scheme(layers, found, cost, limit, self.seed), bits

    def total_bytes(self, bits: int, scheme: UpdateScheme) -> int:
        """Return the predicted total for activations of some bits."""
        return self.memory(scheme, bits).total_bytes


def shifted(split: Split, change: Callable[[Pixels], Pixels]) -> Split:
    """Return a split with changed images."""
    images, classes = split.take(np.arange(len(split)))
    return Split(change(images), classes, np.arange(len(split)))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shifts", nargs="+", choices=list(SHIFTS), default=list(SHIFTS))
    parser.add_argument("--images", type=int, default=1000, help="shifted images to train on")
    parser.add_argument("--steps", type=int, default=400, help="steps of each fine-tuning")


def work(arguments: argparse.Namespace) -> None:
    config = {"width": WIDTH, "batch": BATCH, "images": arguments.images, "limits": LIMITS}
    setting = Setting(arguments, {**config, "steps": arguments.steps, "rates": RATES})
    for seed in setting.seeds:
        missing = [
            shift
            for shift in arguments.shifts
            if setting.answers.find(ACCURACY, f"{shift} {[*LIMITS][-1]}", seed) is None
        ]
        if missing:
            print(f"seed {seed}: training", flush=True)
            i = setting.run_inputs(seed)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "network.onnx")
                export_onnx(trained(i, seed), SHAPE, file, traceable=True)
                for shift in missing:
                    setting.answer(answers(Case.of(shift, seed, arguments, i, file)))
    print(crosstab(setting.answers.rows))


def answers(case: Case) -> list[Row]:
    """Return the rows of all methods on one shift."""
    layers = case.graph.layers
    rows = case.rows("none", None)
    for method, scheme in (("last", last_layer), ("biases", bias_only), ("full", full)):
        rows += case.rows(method, scheme(layers))
    for method, chosen, bits in case.planned():
        rows += case.rows(method, chosen, bits)
    return [*rows, *case.rows("full-4bit", full(layers), 4)]


def trained(i: RunInputs, seed: int) -> nn.Module:
    """Train the network on images without a shift, and return it in evaluation mode."""
    torch.manual_seed(seed)
    network = MODELS["mobilenet"]((*SHAPE[1:], SHAPE[0]), OUTPUTS, WIDTH)
    fit(
        network,
        NetworkStep.of(network, i.task, SHAPE, i.recipe.train),
        i.data.train,
        i.recipe.train,
        seed,
    )
    recalibrate(network, i.task, i.data.train.first(2048), SHAPE)
    return network.eval()


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, options, recipe=here / "recipe.toml")
