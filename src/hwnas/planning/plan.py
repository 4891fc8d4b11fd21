"""The plan of a job: what follows from its data, its budget and the speed of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from hwnas.planning.facts import Facts
from hwnas.planning.speed import Precision, Speed
from hwnas.search.rungs import Rungs

__all__ = ["BATCH_SIZE", "SPACE", "Plan", "make_plan"]

SPACE: Mapping[str, Any] = {"name": "resnet", "preset": "compact"}
BATCH_SIZE = 64

_OVERHEAD_MINUTES = 2.0  # calibration, export, timing, the report
_OVERHEAD_SHARE = 0.04
_LEAST_SHARE = 0.2  # of the budget is for training, whatever the overhead
_REFERENCE_SHARE = 0.6  # of the minutes of a candidate: the reference network has all cores
_HALVINGS = (
    (24, Rungs((0.1, 0.3, 1.0), 2, "similar_cost")),
    (16, Rungs((0.12, 0.35, 1.0), 2, "similar_cost")),
    (8, Rungs((0.25, 1.0), 2, "similar_cost")),
    (6, Rungs((0.25, 1.0), 2, "similar_cost")),
)
"""Candidates and rungs, from the largest budget to the smallest."""
_WANTED_EPOCHS = 80.0  # of a network of middle size, below which fewer candidates are tried
_LEAST_EPOCHS = 70.0  # of the largest network, which decides how large it may be
_MOST_EPOCHS = 400.0  # beyond which no network is trained
_FIRST_RESOLUTION = 0.6
_FULL_RESOLUTION_FROM = 0.6
_LOW_RESOLUTION_GAIN = 1.3  # images in a training that begins at low resolution, over one at full
_PHOTOGRAPH_SIDE = 48  # in pixels; smaller images are cropped less
_SUPERNET_SHARE, _FINETUNE_SHARE = 0.5, 0.4  # of the minutes for training; the rest searches
_WIDTHS = (0.5, 1.0, 1.5, 2.0)  # of the space; multiply-accumulates go with their square
_SUPERNET_TRIALS = 60
_SUPERNET_TOP = 4


@dataclass(frozen=True)
class Plan:
    """Keys of a recipe that follow from a budget.

    Attributes:
        values: By dotted key, as TOML has them.
        summary: What will be done, a line each.
        facts: What it was made from.
        speeds: Likewise.
    """

    values: Mapping[str, Any]
    summary: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    speeds: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def make_plan(
    facts: Facts, speeds: Sequence[Speed], given: Mapping[str, Any] | None = None
) -> Plan:
    """Divide a budget.

    Unless the recipe asks for a supernet, networks are trained alone by successive halving
    (`hwnas.search.rungs`). `experiments/photographs` is to compare the two; nothing is recorded
    there yet.

    Args:
        facts: The data and the budget.
        speeds: Of networks of several sizes, in each precision.
        given: What the recipe says itself, by dotted key; ``search.evaluator`` and
            ``search.trials`` are heeded.
    """
    given = given or {}
    precision = _faster(speeds)
    rates = sorted((s for s in speeds if s.precision == precision), key=lambda s: s.macs)
    if given.get("search.evaluator") == "supernet":
        made = _supernet(facts, rates, precision)
    else:
        made = _halving(facts, rates, precision, given.get("search.trials"))
    rows = tuple({**asdict(speed), "network": speed.network.id} for speed in speeds)
    return replace(made, facts=asdict(facts), speeds=rows)


def _halving(
    facts: Facts, rates: Sequence[Speed], precision: Precision, wanted: int | None
) -> Plan:
    """Networks trained alone, of which the better half of each size goes on."""
    candidates, rungs, each = _choose_halving(facts, rates, _core_minutes(facts), wanted)
    macs = _affordable_macs(facts, rates, each)
    each = min(each, _MOST_EPOCHS / _epochs(facts, _rate(rates, macs), 1.0))
    finalists = candidates
    for _ in rungs.rungs[1:]:
        finalists = rungs.left(finalists)
    values = {
        **_common(facts),
        **_training(facts, precision, each),
        "search.evaluator": "train",
        "search.trials": candidates,
        "search.batch": candidates,
        "search.sampler": "stratified",
        "search.options.most_macs": macs,
        "search.fidelity.rungs": list(rungs.rungs),
        "search.fidelity.keep": rungs.keep,
        "search.fidelity.compare": rungs.compare,
        "deploy.top": finalists,
        "deploy.finetune_epochs": 0.0,
    }
    stops = [f"{share * each:.1f}" for share in rungs.rungs]
    summary = (
        f"{candidates} networks of up to {macs / 1e6:.3g} M multiply-accumulates are trained, "
        f"{facts.cores} at a time, in {precision}: all for {stops[0]} minutes, then the better of "
        f"every {rungs.keep} of similar latency for {' and '.join(stops[1:])} minutes in all",
        f"that is {_epochs(facts, _rate(rates, macs), each):.0f} epochs of the largest; "
        f"{finalists} become bundles",
    )
    return Plan(values, summary)


def _choose_halving(
    facts: Facts, rates: Sequence[Speed], total: float, wanted: int | None
) -> tuple[int, Rungs, float]:
    """Return how many candidates, their rungs, and the minutes of a whole training."""
    options = [(number, rungs, _each(total, number, rungs, facts)) for number, rungs in _HALVINGS]
    if wanted is not None:
        rungs = next((r for n, r, _ in options if n <= wanted), options[-1][1])
        return wanted, rungs, _each(total, wanted, rungs, facts)
    middle = math.sqrt(rates[0].macs * rates[-1].macs)
    for option in options:
        if _epochs(facts, _rate(rates, middle), option[2]) >= _WANTED_EPOCHS:
            return option
    return options[-1]


def _each(total: float, candidates: int, rungs: Rungs, facts: Facts) -> float:
    """Minutes of a whole training, with the reference network's beside the candidates'."""
    return total / (rungs.cost(candidates) + _REFERENCE_SHARE * facts.cores)


def _supernet(facts: Facts, rates: Sequence[Speed], precision: Precision) -> Plan:
    """One training of all networks together, a search among them, fine-tuning of the best."""
    wall = _core_minutes(facts) / facts.cores
    wall /= 1 + _REFERENCE_SHARE / 3
    train, finetune = _SUPERNET_SHARE * wall, _FINETUNE_SHARE * wall
    macs = _affordable_macs(facts, rates, train * facts.cores / 2)
    widest = _WIDTHS[-1] * math.sqrt(macs / rates[-1].macs)
    values = {
        **_common(facts),
        "space.width": [width for width in _WIDTHS if width <= widest] or [_WIDTHS[0]],
        **_training(facts, precision, train),
        "train.workers": facts.cores,
        "search.trials": _SUPERNET_TRIALS,
        "search.options.start": _SUPERNET_TRIALS // 3,
        "deploy.top": _SUPERNET_TOP,
        "deploy.finetune_minutes": round(finetune * facts.cores / _SUPERNET_TOP, 2),
    }
    summary = (
        f"a supernet is trained for {train:.1f} minutes in {precision}, about "
        f"{_epochs(facts, _rate(rates, macs), train * facts.cores):.0f} epochs of a network of "
        f"{macs / 1e6:.3g} M multiply-accumulates",
        f"{_SUPERNET_TRIALS} networks are evaluated; {_SUPERNET_TOP} are fine-tuned for "
        f"{values['deploy.finetune_minutes']:.1f} minutes each",
    )
    return Plan(values, summary)


def _common(facts: Facts) -> dict[str, Any]:
    """Keys that both ways of dividing a budget have."""
    return {
        **{f"space.{name}": value for name, value in SPACE.items()},
        "space.resolution": [max(facts.image_shape[:2])],
        "search.workers": facts.cores,
        "predictor.networks": 12,
        "deploy.reference": facts.kind != "masks",
    }


def _training(facts: Facts, precision: Precision, minutes: float) -> dict[str, Any]:
    """Keys of ``[train]``."""
    photographs = max(facts.image_shape[:2]) >= _PHOTOGRAPH_SIDE
    values: dict[str, Any] = {
        "train.budget_minutes": round(minutes, 2),
        "train.batch_size": min(BATCH_SIZE, max(2, facts.images // 8)),
        "train.learning_rate": 2e-3,
        "train.weight_decay": 0.05,
        "train.ema": 0.995,
        "train.precision": precision,
        "train.first_resolution": _FIRST_RESOLUTION,
        "train.full_resolution_from": _FULL_RESOLUTION_FROM,
        "train.workers": 1,
    }
    if facts.kind != "values":
        values |= {
            "train.crop": 0.4 if photographs else 0.6,
            "train.shift_pixels": 0,
            "train.cutmix": 0.5,
            "train.flip": facts.image_shape[2] == 3,
        }
    return values


def _core_minutes(facts: Facts) -> float:
    """For training, over all cores."""
    overhead = _OVERHEAD_MINUTES + _OVERHEAD_SHARE * facts.minutes
    return max(_LEAST_SHARE * facts.minutes, facts.minutes - overhead) * facts.cores


def _epochs(facts: Facts, images_per_s: float, minutes: float) -> float:
    return 60 * minutes * images_per_s * _LOW_RESOLUTION_GAIN / facts.images


def _rate(rates: Sequence[Speed], macs: float) -> float:
    """Images a second of a network of any size, on lines between logarithms."""
    sizes = np.log([speed.macs for speed in rates])
    seconds = -np.log([speed.images_per_s for speed in rates])
    # A larger network is not faster; where noise says so, it counts as equally fast.
    return float(np.exp(-np.interp(math.log(macs), sizes, np.maximum.accumulate(seconds))))


def _affordable_macs(facts: Facts, rates: Sequence[Speed], minutes: float) -> float:
    """Return the size of the largest network that gets enough epochs, in MACs."""
    sizes = np.geomspace(rates[0].macs, rates[-1].macs, 100)
    able = [size for size in sizes if _epochs(facts, _rate(rates, size), minutes) >= _LEAST_EPOCHS]
    return float(f"{max(able, default=2 * sizes[0]):.3g}")


def _faster(speeds: Sequence[Speed]) -> Precision:
    """The precision in which all networks together train faster."""
    seconds = {
        precision: sum(1 / s.images_per_s for s in speeds if s.precision == precision)
        for precision in sorted({s.precision for s in speeds})
    }
    return min(seconds, key=seconds.__getitem__)
