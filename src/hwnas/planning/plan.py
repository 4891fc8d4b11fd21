"""The plan of a job: what follows from its data, its budget and the speed of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hwnas.planning.facts import Facts
from hwnas.planning.speed import Precision, Speed

__all__ = ["BATCH_SIZE", "SPACE", "WIDTHS", "Plan", "make_plan"]

SPACE: Mapping[str, Any] = {"preset": "compact"}
WIDTHS = (0.5, 1.0, 1.5, 2.0)
BATCH_SIZE = 64

_OVERHEAD_MINUTES = 2.0  # calibration, export, timing, the report
_OVERHEAD_SHARE = 0.04
_RUNGS = (0.1, 0.3, 1.0)
_KEEP = 2
_CANDIDATES = (24, 16, 12, 8, 4)
_WANTED_EPOCHS = 60.0  # of the middle network, below which fewer candidates are tried
_LEAST_EPOCHS = 30.0  # of the largest network, below which it is left out
_FIRST_RESOLUTION = 0.6
_FULL_RESOLUTION_FROM = 0.6
_LOW_RESOLUTION_GAIN = 1.3  # images in a training that begins at low resolution, over one at full
_PHOTOGRAPH_SIDE = 48  # in pixels; smaller images are cropped less


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


def make_plan(facts: Facts, speeds: Sequence[Speed]) -> Plan:
    """Divide a budget by successive halving of networks that are trained alone.

    Args:
        facts: The data and the budget.
        speeds: Of the largest network at each of `WIDTHS`, in each precision.
    """
    precision = _faster(speeds)
    rates = [speed for speed in speeds if speed.precision == precision]
    minutes = _core_minutes(facts)
    middle = rates[len(rates) // 2]
    candidates = next(
        (
            number
            for number in _CANDIDATES
            if _epochs(facts, middle, minutes / _cost(number)) >= _WANTED_EPOCHS
        ),
        _CANDIDATES[-1],
    )
    each = minutes / _cost(candidates)
    trained = [
        width
        for width, rate in zip(WIDTHS, rates, strict=True)
        if _epochs(facts, rate, each) >= _LEAST_EPOCHS
    ] or [WIDTHS[0]]
    largest = rates[len(trained) - 1]
    values = {
        "space.name": "resnet",
        **{f"space.{name}": value for name, value in SPACE.items()},
        "space.resolution": [max(facts.image_shape[:2])],
        "space.width": trained,
        **_training(facts, precision, each),
        "search.evaluator": "train",
        "search.trials": candidates,
        "search.batch": candidates,
        "search.workers": facts.cores,
        "search.fidelity.rungs": list(_RUNGS),
        "search.fidelity.keep": _KEEP,
        "predictor.networks": 12,
        "deploy.top": 3,
        "deploy.finetune_epochs": 0.0,
    }
    summary = (
        f"{candidates} networks of up to {largest.macs / 1e6:.3g} M multiply-accumulates are "
        f"trained for {each * _RUNGS[0]:.1f} minutes each, one in {_KEEP} of them until "
        f"{each * _RUNGS[1]:.1f}, and one in {_KEEP} of these for {each:.1f} minutes in all",
        f"that is {_epochs(facts, largest, each):.0f} epochs of the largest and "
        f"{_epochs(facts, rates[0], each):.0f} of those of the smallest width, in {precision}, "
        f"{facts.cores} at a time",
    )
    rows = tuple({**asdict(speed), "network": speed.network.id} for speed in speeds)
    return Plan(values, summary, asdict(facts), rows)


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
    return max(0.2 * facts.minutes, facts.minutes - overhead) * facts.cores


def _cost(candidates: int) -> float:
    """Of all candidates, in whole trainings."""
    cost, before, left = 0.0, 0.0, float(candidates)
    for rung in _RUNGS:
        cost += left * (rung - before)
        before, left = rung, left / _KEEP
    return cost


def _epochs(facts: Facts, speed: Speed, minutes: float) -> float:
    return 60 * minutes * speed.images_per_s * _LOW_RESOLUTION_GAIN / facts.images


def _faster(speeds: Sequence[Speed]) -> Precision:
    """The precision in which all networks together train faster."""
    seconds = {
        precision: sum(1 / s.images_per_s for s in speeds if s.precision == precision)
        for precision in sorted({s.precision for s in speeds})
    }
    return min(seconds, key=seconds.__getitem__)
