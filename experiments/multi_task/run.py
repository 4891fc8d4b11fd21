"""Are networks with experts for each task better than shared and single ones of equal path cost?

Each image of Fashion-MNIST has three classes: of the garment, of its turn, and of the quarter that
is mirrored. Transformers of equal sizes do all three tasks, and differ in the blocks that have an
expert for each task. Others do one task each. So the path of a task costs the same in all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from experiments.multi_task.images import TASKS
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.scoring import score
from hwnas.search.tasks.multi_task import MultiTask, one_task_data
from hwnas.search.tasks.task import Task
from hwnas.search.training import NetworkStep, fit
from hwnas.search_spaces import Architecture, ExpertsSpace
from hwnas.search_spaces.space.task_paths import path_macs
from hwnas.stages.run_inputs import RunInputs

ACCURACY, MACS, PARAMS = "test_accuracy", "million_macs", "million_params"
SINGLE = "single"
SIDES = {  # experts of the garment, the turn and the quarter, in the second and in the last block
    "shared": ("aaa", "aaa"),
    "late": ("aaa", "abc"),
    "early": ("abc", "abc"),
}
BLOCKS = ("block1.experts", "block3.experts")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", nargs="+", default=[*SIDES, SINGLE], choices=[*SIDES, SINGLE])


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"sides": SIDES})
    for seed in setting.seeds:
        for side in arguments.sides:
            if setting.answers.find(ACCURACY, f"{side} mean", seed) is None:
                print(f"seed {seed}: training {side}", flush=True)
                of_side = single if side == SINGLE else together
                setting.answer(of_side(setting.run_inputs(seed), side, seed))
    print(crosstab(setting.answers.rows))


def together(run_inputs: RunInputs, side: str, seed: int) -> list[Row]:
    """Train one network on all tasks, and return its accuracies and costs."""
    space, task = space_of(run_inputs), task_of(run_inputs)
    architecture = with_experts(space, SIDES[side])
    network = space.build(architecture)
    shape = space.input_shape(architecture)
    trained(run_inputs, network, task, run_inputs.data, shape, seed)
    found = score(network, task, run_inputs.data.test, shape, "test")
    rows = [
        accuracy(side, name, seed, found.values[metric], found.standard_errors[metric], found.n)
        for name, metric in [("mean", "accuracy"), *((t, task.metric_of(t)) for t in TASKS)]
    ]
    workload = space.workload(architecture)
    costs = {"together": workload.macs, **path_macs(space, architecture)}
    return [*rows, *cost_rows(side, seed, costs, workload.params)]


def single(run_inputs: RunInputs, side: str, seed: int) -> list[Row]:
    """Train a network for each task, and return their accuracies and costs."""
    space, task = space_of(run_inputs), task_of(run_inputs)
    architecture = with_experts(space, SIDES["shared"])
    rows, values, errors = [], [], []
    params, n = 0, len(run_inputs.data.test)
    for name in TASKS:
        paths, path = space.path_space(name), space.path_architecture(architecture, name)
        own, data = task.one_task(name), one_task_data(run_inputs.data, task, name)
        network, shape = paths.build(path), paths.input_shape(path)
        trained(run_inputs, network, own, data, shape, seed)
        found = score(network, own, data.test, shape, "test")
        values.append(found.values["accuracy"])
        errors.append(found.standard_errors["accuracy"])
        rows.append(accuracy(side, name, seed, values[-1], errors[-1], n))
        params += paths.workload(path).params
    macs = path_macs(space, architecture)
    mean_error = sum(error**2 for error in errors) ** 0.5 / len(errors)
    mean = accuracy(side, "mean", seed, sum(values) / len(values), mean_error, n)
    return [*rows, *cost_rows(side, seed, {"together": sum(macs.values()), **macs}, params), mean]


def trained(
    run_inputs: RunInputs,
    network: nn.Module,
    task: Task,
    data: ImageData,
    shape: tuple[int, int, int],
    seed: int,
) -> None:
    """Train a network from new weights, and set it to evaluation mode."""
    config = run_inputs.recipe.train
    torch.manual_seed(seed)
    for module in network.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    fit(network, NetworkStep.of(network, task, shape, config), data.train, config, seed)
    network.eval()


def space_of(run_inputs: RunInputs) -> ExpertsSpace:
    space = run_inputs.space
    assert isinstance(space, ExpertsSpace)
    return space


def task_of(run_inputs: RunInputs) -> MultiTask:
    task = run_inputs.task
    assert isinstance(task, MultiTask)
    return task


def with_experts(space: ExpertsSpace, assignments: Sequence[str]) -> Architecture:
    """Return the network with these experts in the blocks that have some."""
    return space.architecture(dict(zip(BLOCKS, assignments, strict=True)))


def accuracy(side: str, name: str, seed: int, value: float, error: float, n: int) -> Row:
    spread = {"standard_error": error}
    return Row(ACCURACY, f"{side} {name}", seed, value, "fraction", n, spread)


def cost_rows(side: str, seed: int, macs: dict[str, int], params: int) -> list[Row]:
    """Return the multiply-accumulates of all tasks and of each path, and the parameters."""
    found = [(MACS, name, value) for name, value in macs.items()]
    found.append((PARAMS, "together", params))
    return [Row(m, f"{side} {name}", seed, value / 1e6, "million", 1) for m, name, value in found]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, options, recipe=here / "recipe.toml")
