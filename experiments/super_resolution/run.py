"""Are the networks of a search for super-resolution better than published and hand-scaled ones?

For each seed, the recipe runs from pictures to bundles. ESPCN, FSRCNN and two hand-scaled networks
of the space are trained alone on one core, each for as long as the whole search took, with its
settings of the training. All are timed together, on patches of 32 pixels, and scored on the whole
pictures of Set5 and Set14, with bicubic enlargement beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from experiments.alone import for_seconds, train_alone
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import of_job
from experiments.super_resolution.pictures import SETS, UPSCALE, pictures_of
from experiments.super_resolution.rivals import HAND_SCALED, rivals
from hwnas.deploy import Target, measure
from hwnas.deploy.pictures import picture_of
from hwnas.deploy.runtimes import open_session
from hwnas.search.data.pictures import scaled_down
from hwnas.search.tasks.super_resolution import luma, structural_similarity
from hwnas.stages.run_inputs import RunInputs

OURS, RIVALS, BICUBIC = "hwnas", "alone", "bicubic"
TARGET = "cpu-onnxruntime-fp32-b1-t1"

Upscaler = Callable[[np.ndarray], np.ndarray]
"""Function that makes a picture, uint8 (2 H, 2 W, 3), of an image, uint8 (H, W, 3)."""


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"hand_scaled": HAND_SCALED, "target": TARGET, "sets": SETS})
    done = {row.seed for row in setting.answers.rows}
    for seed in setting.seeds:
        if seed not in done:
            rows = observe(setting, seed)
            setting.observations.put(rows)
            setting.answer(judge(rows, seed))
    setting.show()


def observe(setting: Setting, seed: int) -> list[Row]:
    """Make the networks of both sides, resuming interrupted work, then time and score them."""
    folder, job = setting.work / f"seed-{seed}", setting.experiment(seed)
    print(f"seed {seed}: running the whole search", flush=True)
    ours, run_inputs, seconds = of_job(OURS, job, folder / OURS)
    with cores(run_inputs.recipe) as at_once:
        training = for_seconds(run_inputs, seconds)
        theirs, _ = train_alone(
            *(RIVALS, rivals(), run_inputs, [training], folder / RIVALS, at_once)
        )
    networks = [*ours, *theirs]
    measured = measure({each.subject: each.onnx for each in networks}, Target.parse(TARGET))
    rows = [Row("seconds", OURS, seed, seconds, "s", 1)]
    for network in networks:
        found = measured[network.subject]
        spread = {"p20": found.headline.p20, "p80": found.headline.p80}
        details = {
            "side": network.side,
            "latency_ms": found.latency_ms,
            "validation_psnr_db": network.validation,
            "macs": network.macs,
            "architecture": network.architecture,
        }
        rows.append(Row("latency", network.subject, seed, found.latency_ms, "ms", found.n, spread))
        upscale = upscaler(network.onnx, run_inputs, TARGET)
        rows += scores(network.subject, seed, upscale, details)
    return [*rows, *scores(BICUBIC, seed, bicubic, {"side": BICUBIC})]


def upscaler(onnx: Path, run_inputs: RunInputs, target: str) -> Upscaler:
    """Return the function that a network's ONNX file computes on a target, tile by tile."""
    session = open_session(onnx, Target.parse(target))
    task = run_inputs.task
    _, height, width = session.input_shape

    def pictures(tiles: np.ndarray) -> np.ndarray:
        inputs = task.preprocessing(tiles).contiguous().numpy()
        return task.meaning.pictures(np.concatenate([session.run(each[None]) for each in inputs]))

    return lambda image: picture_of(image, (height, width), UPSCALE, pictures)


def bicubic(image: np.ndarray) -> np.ndarray:
    """Return an image enlarged bicubically."""
    size = image.shape[1] * UPSCALE, image.shape[0] * UPSCALE
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


def scores(subject: str, seed: int, upscale: Upscaler, details: dict[str, object]) -> list[Row]:
    """Return the mean of both metrics over the whole pictures of each set."""
    rows = []
    for name in SETS:
        found = [_scores(upscale(scaled_down(each, UPSCALE)), each) for each in pictures_of(name)]
        psnr, ssim = np.mean(found, axis=0)
        rows.append(Row(f"psnr_{name}", subject, seed, psnr, "dB", len(found), {}, details))
        rows.append(Row(f"ssim_{name}", subject, seed, ssim, "of at most 1", len(found)))
    return rows


def _scores(made: np.ndarray, picture: np.ndarray) -> tuple[float, float]:
    border = slice(UPSCALE, -UPSCALE)
    y, x = (
        luma(torch.tensor(each).permute(2, 0, 1)[None].double() / 255)[:, :, border, border]
        for each in (made, picture)
    )
    error = (y - x).square().mean().item()
    return -10 * float(np.log10(error)), structural_similarity(y, x).item()


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Compare the front of a search with each rival, and with bicubic enlargement.

    ``psnr_gain_SET``: PSNR of the finalist that is best on validation patches among those that are
    at most as slow as the rival, less the rival's. ``speed_at_psnr_SET``: latency of the rival over
    that of the fastest finalist with at least its PSNR; 0 if there is none.
    """
    found = [row for row in rows if row.metric == "seconds"]
    for name in SETS:
        scored = [row for row in rows if row.metric == f"psnr_{name}"]
        sides = {
            side: [row for row in scored if row.details["side"] == side]
            for side in (OURS, RIVALS, BICUBIC)
        }
        ours = sides[OURS]
        best = max(ours, key=_validation)
        found.append(_gain(name, f"{OURS} most-accurate / {BICUBIC}", best, sides[BICUBIC][0]))
        for rival in sides[RIVALS]:
            limit = float(rival.details["latency_ms"])
            fast = [row for row in ours if row.details["latency_ms"] <= limit]
            good = [row for row in ours if _value(row) >= _value(rival)]
            subject = f"{OURS} / {rival.subject}"
            if fast:
                found.append(_gain(name, subject, max(fast, key=_validation), rival))
            speed = limit / min((float(r.details["latency_ms"]) for r in good), default=np.inf)
            found.append(Row(f"speed_at_psnr_{name}", subject, seed, speed, "ratio", rival.n))
    return found


def _validation(row: Row) -> float:
    return float(row.details["validation_psnr_db"])


def _value(row: Row) -> float:
    assert row.value is not None
    return row.value


def _gain(name: str, subject: str, ours: Row, theirs: Row) -> Row:
    gain = _value(ours) - _value(theirs)
    details = {"ours": ours.value, "theirs": theirs.value}
    return Row(f"psnr_gain_{name}", subject, ours.seed, gain, "dB", ours.n, {}, details)


if __name__ == "__main__":
    main(
        Path(__file__).parent,
        __doc__,
        work,
        recipe=Path(__file__).with_name("recipe.toml"),
    )
