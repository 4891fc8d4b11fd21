"""Do networks for super-resolution need fewer bit operations if their bits are searched with them?

Jobs of equal minutes search the same networks: with the bits of every block, trained with noise in
place of rounding (QuantNAS); the same with rounding, or with adaptive normalisation; with 8 or with
4 bits everywhere; and in single precision, with the finalists quantised to int8 afterwards. All
networks of all sides make the pictures of Set5 and Set14 as int8 files in ONNX Runtime.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from experiments.configuration import recipe_values
from experiments.equal_accuracy import SHARES, hypervolume_ratio, levels, speed_ratios
from experiments.formats import in_formats
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import of_job
from experiments.super_resolution.pictures import SETS
from experiments.super_resolution.run import scores, upscaler
from hwnas.experiment import Experiment
from hwnas.stages.finalists.bundles import read_bundles

JOINT, AFTERWARDS = "joint", "afterwards"
_ONE_FORMAT = 'space.granularity=["tensor", "channel"]'
JOBS: Mapping[str, Sequence[str]] = {
    JOINT: (),
    "rounding": ("train.quantisation=round",),
    "adaptive": ("space.network.normalisation=adaptive",),
    "uniform-8": ("space.weight_bits=[8]", "space.activation_bits=[8]", _ONE_FORMAT),
    "uniform-4": ("space.weight_bits=[4]", "space.activation_bits=[4]", _ONE_FORMAT),
}
"""Changes to the recipe by side. With one bit width, the granularity of the scales is searched."""
SINGLE_PRECISION = Path(__file__).with_name("single_precision.toml")
TARGET = "cpu-onnxruntime-int8-b1-t1"
_INT8_PRODUCT = 64  # bit operations of a multiply-accumulate of 8 by 8 bits


def work(arguments: argparse.Namespace) -> None:
    plain = recipe_values(Experiment.load(SINGLE_PRECISION, arguments.set).recipe)
    setting = Setting(arguments, {"jobs": JOBS, AFTERWARDS: plain, "target": TARGET})
    for seed in setting.seeds:
        for side in (*JOBS, AFTERWARDS):
            if not setting.observed(side, seed):
                setting.observations.put(observe(setting, arguments.set, side, seed))
        rows = [row for row in setting.observations.rows if row.seed == seed]
        setting.answer(judge(rows, seed))
    setting.show()


def observe(setting: Setting, overrides: Sequence[str], side: str, seed: int) -> list[Row]:
    """Run the job of a side, resuming interrupted work, and score its finalists in int8."""
    print(f"seed {seed}: running the job {side}", flush=True)
    folder = setting.work / f"seed-{seed}"
    if side == AFTERWARDS:
        job = Experiment.load(SINGLE_PRECISION, [*overrides, f"seed={seed}"])
    else:
        job = setting.experiment(seed, JOBS[side])
    networks, run_inputs, seconds = of_job(side, job, folder / side)
    rows = [Row("seconds", f"{side} job", seed, seconds, "s", 1)]
    bundles = read_bundles(folder / side / "bundles").values()
    for network, bundle in zip(networks, bundles, strict=True):
        file, operations = bundle.folder / bundle.artifacts[0].file, _INT8_PRODUCT * network.macs
        if side == AFTERWARDS:
            shape = run_inputs.space.input_shape(bundle.architecture)
            (converted,) = in_formats(network, ["int8"], shape, run_inputs, folder / "files")
            file = converted.onnx
        else:
            operations = run_inputs.space.workload(bundle.architecture).bit_operations
        details = {
            "side": side,
            "bit_operations": operations,
            "validation_psnr_db": network.validation,
            "architecture": network.architecture,
        }
        rows += scores(network.subject, seed, upscaler(file, run_inputs, TARGET), details)
    return rows


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Compare the front of the joint search with those of the other sides.

    ``operations_at_SHARE_SET``: bit operations of the other front over those of the joint one, at
    a PSNR so far along the range that both have in common. ``hypervolume_ratio_SET``: of PSNR and
    the logarithm of bit operations. Rows are missing where the fronts have no PSNR in common.
    """
    found = [row for row in rows if row.metric == "seconds"]
    for name, other in product(SETS, (*list(JOBS)[1:], AFTERWARDS)):
        scored = [row for row in rows if row.metric == f"psnr_{name}"]
        ours, theirs = (
            np.array(
                [
                    [-float(row.value or 0.0), row.details["bit_operations"]]
                    for row in scored
                    if row.details["side"] == side
                ]
            )
            for side in (JOINT, other)
        )
        subject, count = f"{JOINT} / {other}", len(ours) + len(theirs)
        ratio = hypervolume_ratio(ours, theirs)
        found.append(Row(f"hypervolume_ratio_{name}", subject, seed, ratio, "ratio", count))
        wanted = levels(ours, theirs)
        for share, fewer in zip(SHARES, speed_ratios(ours, theirs, wanted), strict=False):
            metric = f"operations_at_{share:.0%}_{name}".replace("%", "_percent")
            found.append(Row(metric, subject, seed, float(fewer), "ratio", count))
    return found


if __name__ == "__main__":
    main(
        Path(__file__).parent,
        __doc__,
        work,
        recipe=Path(__file__).with_name("recipe.toml"),
    )
