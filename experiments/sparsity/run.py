"""What do pruning criteria, searched densities and distillation do for sparse networks?

A small CNN and a small vision transformer are trained briefly. Each is pruned without training, to
equal densities by several criteria; and to 2:4, then fine-tuned and quantised, with and without a
teacher. Densities of layers are searched in a network of three layers, where all can be tried.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.own_models.models import MODELS
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy.export.conv_norm import fold_norms
from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.sparsity import SparsitySettings, prune_network
from hwnas.deploy.sparsity.conversion import SparseConversion
from hwnas.deploy.sparsity.distribution import Grid, additive, around, evolved
from hwnas.deploy.sparsity.matrices import prunable_layers
from hwnas.deploy.sparsity.supernet import DensitySupernet
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.search.evaluation.converted import Executed, calibration_batches
from hwnas.search.evaluation.evaluate import train_network
from hwnas.search.evaluation.scoring import recalibrate, score
from hwnas.search.training import NetworkStep, Teacher, fit
from hwnas.stages.run_inputs import RunInputs

ONE_SHOT, INT8, ERROR = "accuracy_pruned", "accuracy_int8", "output_error"
WIDTH = 0.5  # of the models, which train in a minute then
STRUCTURES = {  # the convolutions of the CNN have no blocks, since no product skips them
    "cnn": ("unstructured-50", "unstructured-25", "2of4"),
    "vit": ("unstructured-50", "unstructured-25", "2of4", "block8x8-50", "block8x8-25"),
}
METHODS = ("magnitude", "wanda", "obs", "obs-refined")
SEARCHED = ("unstructured-25", "block8x8-25")
WAYS = {  # criterion, whether there is a teacher, weight of its features
    "magnitude-outputs": ("magnitude", True, 0.0),
    "obs-alone": ("obs", False, 0.0),
    "obs-outputs": ("obs", True, 0.0),
    "obs-features": ("obs", True, 1.0),
}
SHAPE, OUTPUTS = (1, 28, 28), 10


@dataclass(frozen=True)
class Case:
    """Trained network of a seed, and what it is pruned with."""

    name: str
    seed: int
    run_inputs: RunInputs
    network: nn.Module

    @property
    def batches(self) -> list[Tensor]:
        """Calibration images, as a sweep has them."""
        preprocessing = self.run_inputs.task.preprocessing.at(*SHAPE[1:])
        found = calibration_batches(self.run_inputs.data.train, preprocessing, 32)
        return [torch.from_numpy(batch) for batch in found]

    def row(self, metric: str, subject: str, network: nn.Module) -> Row:
        """Return the test accuracy of a network."""
        i = self.run_inputs
        found = score(network, i.task, i.data.test, SHAPE, "test")
        spread = {"standard_error": found.standard_errors["accuracy"]}
        value = found.values["accuracy"]
        return Row(metric, f"{self.name} {subject}", self.seed, value, "fraction", found.n, spread)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(STRUCTURES), choices=list(STRUCTURES))


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"width": WIDTH, "structures": STRUCTURES})
    for seed in setting.seeds:
        run_inputs = setting.run_inputs(seed)
        if setting.answers.find(ERROR, "three-layers brute-force", seed) is None:
            setting.answer(three_layers(run_inputs, seed))
        for name in arguments.models:
            if setting.answers.find(INT8, f"{name} dense", seed) is None:
                print(f"seed {seed}: training {name}", flush=True)
                network = MODELS[name]((*SHAPE[1:], SHAPE[0]), OUTPUTS, WIDTH)
                case = Case(name, seed, run_inputs, trained(run_inputs, network, seed))
                setting.answer(one_shot(case, STRUCTURES[name]))
                setting.answer(sparse_int8(case))
    print(crosstab(setting.answers.rows))


def trained(run_inputs: RunInputs, network: nn.Module, seed: int) -> nn.Module:
    """Train a network on labels, and return it in evaluation mode."""
    task, data, config = run_inputs.task, run_inputs.data, run_inputs.recipe.train
    torch.manual_seed(seed)
    for module in network.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    fit(network, NetworkStep.of(network, task, SHAPE, config), data.train, config, seed)
    recalibrate(network, task, data.train.first(2048), SHAPE)
    return network.eval()


def one_shot(case: Case, structures: Sequence[str]) -> list[Row]:
    """Return the accuracy after pruning alone, as the file of a sweep has it: norms are folded."""
    folded = copy.deepcopy(case.network)
    fold_norms(folded)
    rows = [case.row(ONE_SHOT, f"{words} dense", folded) for words in structures]
    for words in structures:
        for method in (*METHODS, *(["obs-searched"] if words in SEARCHED else [])):
            print(f"seed {case.seed}: {case.name} {words} {method}", flush=True)
            network = copy.deepcopy(folded)
            named = SparsitySettings.parse([*words.split("-"), *method.split("-")])
            prune_network(network, case.batches, named)
            rows.append(case.row(ONE_SHOT, f"{words} {method}", network))
    return rows


def sparse_int8(case: Case) -> list[Row]:
    """Return the accuracy of 2:4 int8 files after fine-tuning, and of the dense int8 file."""
    rows = []
    for way, (criterion, taught, features) in WAYS.items():
        print(f"seed {case.seed}: {case.name} 2of4 int8 {way}", flush=True)
        network = copy.deepcopy(case.network)
        fine_tune(case, network, SparsitySettings.parse(["2of4", criterion]), taught, features)
        rows.append(case.row(INT8, f"2of4 {way}", quantised(case, network)))
    return [*rows, case.row(INT8, "dense", quantised(case, case.network))]


def fine_tune(
    case: Case, network: nn.Module, settings: SparsitySettings, taught: bool, features: float
) -> None:
    """Prune a network, and fine-tune it as a sweep does."""
    i = case.run_inputs
    config = i.recipe.fine_tuning
    assert config is not None
    teacher = Teacher(case.network, SHAPE) if taught else None
    conversion = SparseConversion(settings, case.batches, FakeQuantisation())
    conversion.begin(network)
    step = NetworkStep.of(network, i.task, SHAPE, config, teacher, features)
    train_network(step, i.data, config, case.seed, recalibration_images=2048)
    conversion.end(network)


def quantised(case: Case, network: nn.Module) -> nn.Module:
    """Return a network as an int8 file that runs in ONNX Runtime."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "network.onnx")
        export_onnx(network, SHAPE, file, traceable=True)
        return Executed(quantize_int8(file, file, [batch.numpy() for batch in case.batches]))


def three_layers(run_inputs: RunInputs, seed: int) -> list[Row]:
    """Return the errors of densities in a small network, where all of a grid can be tried."""
    print(f"seed {seed}: three layers", flush=True)
    layers = (nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, OUTPUTS))
    network = trained(run_inputs, nn.Sequential(nn.Flatten(), *layers), seed)
    settings = SparsitySettings.parse(["unstructured", "25"])
    case = Case("three-layers", seed, run_inputs, network)
    prunable = prunable_layers(network, settings.structure)
    supernet = DensitySupernet(network, prunable, case.batches, settings)
    levels = around(settings.share, 1 / 8)
    supernet.build(dict.fromkeys(supernet.names, levels))
    grid = Grid(supernet, (levels,) * len(supernet.names))
    start = (levels.index(settings.share),) * len(supernet.names)
    places = itertools.product(range(len(levels)), repeat=len(supernet.names))
    found = {
        "uniform": start,
        "additive": additive(grid, start),
        "searched": evolved(grid, [start, additive(grid, start)], random.Random(seed)),
        "brute-force": min(filter(grid.fits, places), key=grid.error),
    }
    rows = []
    for method, vector in found.items():
        details = {"densities": grid.densities(vector)}
        error, subject = grid.error(vector), f"three-layers {method}"
        rows.append(Row(ERROR, subject, seed, error, "ratio", 256, details=details))
    return rows


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, options, recipe=here / "recipe.toml")
