"""Where do convolution and attention stand best, over four stages at equal latency?

For each of the 16 placements of convolution or attention over four stages, the width is chosen at
which the network is as fast as the one of convolutions alone. All are trained alone for equal time,
and timed against each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from experiments.alone import Alone, train_alone
from experiments.readme_table import markdown
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import rows_of
from hwnas.atomic import write_json
from hwnas.deploy import Target, export_onnx, measure
from hwnas.search.objectives.front import non_dominated
from hwnas.search_spaces import HybridConfig, HybridSpace, HybridStage
from hwnas.search_spaces.hybrid.config import BlockKind
from hwnas.stages.run_inputs import RunInputs

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
CHANNELS, STRIDES, DEPTH = (32, 64, 96, 128), (1, 2, 2, 1), 3
WIDTHS = tuple(n / 8 for n in range(2, 15))
KINDS: Mapping[str, BlockKind] = {"C": "convolution", "A": "attention"}
PLACEMENTS = tuple("".join(each) for each in itertools.product(KINDS, repeat=len(CHANNELS)))
ASYMMETRIC = ("CCCA", "CCAA", "CAAA")
"""Placements that begin with convolutions and end with attention, as AsCAN's do."""
REFERENCE = "CCCC"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M", help="of each network")


def work(arguments: argparse.Namespace) -> None:
    minutes = arguments.minutes
    config = {"minutes": minutes, "channels": CHANNELS, "depth": DEPTH, "widths": WIDTHS}
    setting = Setting(arguments, config)
    for seed in setting.seeds:
        if setting.answers.find("test_error", REFERENCE, seed) is None:
            run_inputs = setting.run_inputs(seed)
            widths = equally_fast(run_inputs, setting.work)
            rows = observe(run_inputs, widths, minutes, seed, setting.work / f"seed-{seed}")
            setting.observations.put(rows)
            setting.answer(answers(rows, seed))
    print(markdown(setting.answers.rows))


def space_of(placement: str, width: float, run_inputs: RunInputs) -> HybridSpace:
    """Return the space of one network; the first block of each stage is a convolution."""
    height, _, channels = run_inputs.data.image_shape
    stages = tuple(
        HybridStage(count, stride, (DEPTH,), (KINDS[letter],), expand_ratio=(4,), mlp_ratio=(4,))
        for count, stride, letter in zip(CHANNELS, STRIDES, placement, strict=True)
    )
    config = HybridConfig(
        stages,
        resolution=(height,),
        width=(width,),
        in_channels=channels,
        outputs=run_inputs.task.outputs,
        stem_channels=16,
        stem_stride=2,
        head_channels=256,
        feature_channels=256,
    )
    return HybridSpace(config)


def equally_fast(run_inputs: RunInputs, work: Path) -> dict[str, float]:
    """Return the width of each placement whose latency is nearest to the reference's at width 1.

    All networks are timed in one session of interleaved rounds; the result is kept in the folder.
    """
    kept = work / "widths.json"
    if kept.exists():
        return {name: float(width) for name, width in json.loads(kept.read_text()).items()}
    models: dict[str, Path] = {}
    for placement, width in itertools.product(PLACEMENTS, WIDTHS):
        space = space_of(placement, width, run_inputs)
        path = work / "untrained" / f"{placement}-{width:g}.onnx"
        if not path.exists():
            export_onnx(space.build(space.smallest()), space.input_shape(space.smallest()), path)
        models[f"{placement} {width:g}"] = path
    print(f"timing {len(models)} networks", flush=True)
    found = {name: each.latency_ms for name, each in measure(models, TARGET).items()}
    wanted = found[f"{REFERENCE} 1"]
    chosen = {
        placement: min(WIDTHS, key=lambda width: abs(found[f"{placement} {width:g}"] - wanted))
        for placement in PLACEMENTS
    }
    write_json(kept, chosen)
    return chosen


def observe(
    run_inputs: RunInputs, widths: Mapping[str, float], minutes: float, seed: int, folder: Path
) -> list[Row]:
    """Train the network of each placement, and time all of them together."""
    training = replace(run_inputs.recipe.train, epochs=None, budget_minutes=minutes)
    wanted = []
    for placement, width in widths.items():
        space = space_of(placement, width, run_inputs)
        build = partial(_built, space)
        shape = space.input_shape(space.smallest())
        wanted.append(Alone(placement, build, shape, {"width": width}))
    with cores(run_inputs.recipe) as at_once:
        networks, _ = train_alone("placement", wanted, run_inputs, [training], folder, at_once)
    found = measure({each.id: each.onnx for each in networks}, TARGET)
    n = len(run_inputs.data.test)
    return [row for each in networks for row in rows_of(each, found[each.id], n, seed)]


def _built(space: HybridSpace) -> nn.Module:
    return space.build(space.smallest())


def answers(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return error and relative latency of each placement, and whether it is on the front."""
    errors = {r.subject.split()[-1]: r for r in rows if r.metric == "test_error"}
    latencies = {name: row.details["latency_ms"] for name, row in errors.items()}
    points = [[row.value, latencies[name]] for name, row in errors.items()]
    best = dict(zip(errors, non_dominated(np.array(points)), strict=True))
    found = []
    for name, row in errors.items():
        relative = latencies[name] / latencies[REFERENCE]
        details = {"width": row.details["architecture"]["width"], "front": bool(best[name])}
        found += [
            Row("test_error", name, seed, row.value, "fraction", row.n, row.spread, details),
            Row("relative_latency", name, seed, relative, "ratio", 1),
        ]
    lowest = min(errors[name].value for name in ASYMMETRIC)
    others = min(row.value for name, row in errors.items() if name not in ASYMMETRIC)
    return [*found, Row("error_gained", "asymmetric", seed, others - lowest, "fraction", 1)]


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
