"""Does the whole job run on semantic segmentation, with a U-Net that is not written for hwnas?

For each seed, the recipe runs from images to bundles. Each bundle then predicts masks of the test
images, and scikit-learn scores these again, over all pixels of all images at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import jaccard_score

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import Bundle
from hwnas.run_folder import RunFolder
from hwnas.search import ImageData
from hwnas.search.data.masks import VOID
from hwnas.stages.finalists.bundles import latency_of, picks, read_bundles, score_of
from hwnas.stages.run_inputs import RunInputs

_PREDICTED_AT_ONCE = 256


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {})
    done = {row.seed for row in setting.answers.rows}
    for seed in setting.seeds:
        if seed not in done:
            print(f"seed {seed}: running the whole job", flush=True)
            setting.answer(observe(setting, seed))
    setting.show()


def observe(setting: Setting, seed: int) -> list[Row]:
    """Run the recipe and return the rows of its bundles and the seconds of its stages."""
    run = setting.work / f"seed-{seed}" / "run"
    setting.experiment(seed).run(run)
    with RunFolder.open(run) as opened:
        seconds = {name: stage.wall_s for name, stage in opened.stages.items()}
    run_inputs = setting.run_inputs(seed)
    bundles = read_bundles(run / "bundles")
    named = picks(bundles, run_inputs.task.metrics[0], run_inputs.recipe.objective)
    rows = [
        row
        for pick, name in named.items()
        for row in rows_of(pick, bundles[name], run_inputs, seed)
    ]
    return [*rows, *(Row("seconds", stage, seed, s, "s", 1) for stage, s in seconds.items())]


def rows_of(pick: str, bundle: Bundle, run_inputs: RunInputs, seed: int) -> list[Row]:
    """Return a network's test scores, the mean IoU of its bundle's masks, and its latency."""
    details = {"id": bundle.folder.name, "architecture": bundle.architecture.to_json()}
    rows = []
    for metric in ("mean_iou", "pixel_accuracy"):
        found = score_of(bundle, metric, "test")
        spread = {"standard_error": found["standard_error"]}
        rows.append(
            Row(
                f"test_{metric}",
                pick,
                seed,
                found["value"],
                "fraction",
                found["n"],
                spread,
                details,
            )
        )
    again = mean_iou_of_masks(bundle, run_inputs.data)
    latency = latency_of(bundle, run_inputs.recipe.objective)
    n = len(run_inputs.data.test)
    return [
        *rows,
        Row("mean_iou_of_masks", pick, seed, again, "fraction", n),
        Row("latency", pick, seed, latency, "ms", bundle.measurements[0].n),
    ]


def mean_iou_of_masks(bundle: Bundle, data: ImageData) -> float:
    """Return scikit-learn's mean IoU of the bundle's predicted masks of the test images."""
    truth, found = [], []
    for start in range(0, len(data.test), _PREDICTED_AT_ONCE):
        rows = range(start, min(start + _PREDICTED_AT_ONCE, len(data.test)))
        images, masks = data.test.take(rows)
        truth.append(masks.reshape(-1))
        found.append(np.stack(bundle.masks(images)).reshape(-1))
    known = np.concatenate(truth) != VOID
    return float(
        jaccard_score(np.concatenate(truth)[known], np.concatenate(found)[known], average="macro")
    )


if __name__ == "__main__":
    main(
        Path(__file__).parent,
        __doc__,
        work,
        seeds=(0,),
        recipe=Path(__file__).with_name("recipe.toml"),
    )
