"""Are deformable kernels better than plain ones where objects differ in size?

Two MobileNets that differ only in their depthwise kernels are trained alone for equal time: on
Fashion-MNIST as it is, and on copies whose images are scaled and turned at random.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.alone import Alone, train_alone
from experiments.command import data_folder
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network, rows_of
from hwnas.deploy import Target, measure
from hwnas.search_spaces import MobileNetSpace, Stage, mobilenet
from hwnas.stages.run_inputs import RunInputs

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
PLAIN, DEFORMABLE, LARGE = "plain", "deformable", "plain-5x5"
OPERATORS = {PLAIN: "k3_e3", DEFORMABLE: "k3_e3_d", LARGE: "k5_e3"}
SCALES, DEGREES = (0.5, 1.25), 30.0
_SIDE = 28
_BATCH = 5000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help="of each network")


def work(arguments: argparse.Namespace) -> None:
    minutes = arguments.minutes
    config = {"minutes": minutes, "scales": SCALES, "degrees": DEGREES, "operators": OPERATORS}
    setting = Setting(arguments, config)
    copies = warped_copy(arguments.work / "warped.npz")
    for seed in setting.seeds:
        for case, source in (("original", []), ("warped", [f"data.source=npz:{copies}"])):
            if setting.answers.find("test_error", f"{case} {PLAIN}", seed) is None:
                experiment = setting.experiment(seed, source)
                run_inputs = RunInputs.prepare(experiment.recipe, experiment.folder)
                folder = setting.work / case / f"seed-{seed}"
                networks = trained(run_inputs, minutes, folder)
                setting.answer(answers(networks, len(run_inputs.data.test), case, seed))
    print(crosstab(setting.answers.rows))


def warped_copy(path: Path) -> Path:
    """Write Fashion-MNIST with scaled and turned images, always the same ones, and return it."""
    if not path.exists():
        with np.load(data_folder() / "images" / "fashion_mnist.npz") as arrays:
            found = dict(arrays)
        generator = torch.Generator().manual_seed(0)
        for name, images in found.items():
            if images.ndim >= 3:
                found[name] = warped(torch.from_numpy(images), generator).numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **found)
    return path.absolute()


def warped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images (N, H, W, ...), uint8, each scaled and turned about its centre at random."""
    found = []
    for batch in images.reshape(len(images), 1, *images.shape[1:3]).split(_BATCH):
        n = len(batch)
        low, high = map(math.log, SCALES)
        scale = torch.empty(n).uniform_(low, high, generator=generator).exp()
        angle = torch.empty(n).uniform_(-DEGREES, DEGREES, generator=generator).deg2rad()
        cosine, sine = angle.cos() / scale, angle.sin() / scale
        still = torch.zeros(n)
        rows = [torch.stack(row, 1) for row in ([cosine, -sine, still], [sine, cosine, still])]
        grid = functional.affine_grid(torch.stack(rows, 1), list(batch.shape), align_corners=False)
        moved = functional.grid_sample(batch.float(), grid, align_corners=False)
        found.append(moved.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(found).reshape(images.shape)


def trained(run_inputs: RunInputs, minutes: float, folder: Path) -> list[Network]:
    """Return the trained networks, one for each kind of kernel."""
    training = replace(run_inputs.recipe.train, epochs=None, budget_minutes=minutes)
    wanted = []
    for name, operator in OPERATORS.items():
        space = mobilenet(
            run_inputs.data.image_shape,
            run_inputs.task.outputs,
            stages=(
                Stage(24, 2, (2,), operators=(operator,)),
                Stage(48, 2, (2,), operators=(operator,)),
                Stage(96, 1, (2,), operators=(operator,)),
            ),
            resolution=(_SIDE,),
            width=(1.0,),
            stem_stride=1,
            operator_weights="own",
        )
        shape = space.input_shape(space.largest())
        wanted.append(Alone(name, partial(_built, space), shape, {"operator": operator}))
    with cores(run_inputs.recipe) as at_once:
        networks, _ = train_alone("kernels", wanted, run_inputs, [training], folder, at_once)
    return networks


def _built(space: MobileNetSpace) -> nn.Module:
    return space.build(space.largest())


def answers(networks: list[Network], n: int, case: str, seed: int) -> list[Row]:
    """Return test errors, latencies, and the accuracy that deformable kernels gain."""
    found = measure({each.id: each.onnx for each in networks}, TARGET)
    rows = [
        replace(row, subject=f"{case} {each.id}")
        for each in networks
        for row in rows_of(each, found[each.id], n, seed)
    ]
    test = {each.id: each.test for each in networks}
    gained = test[DEFORMABLE] - test[PLAIN]
    return [*rows, Row("accuracy_gained", f"{case} {DEFORMABLE}", seed, gained, "fraction", n)]


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
