"""Plan of a job: the settings that follow from its data, its budget and the machine's speed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from hwnas.planning.facts import JobFacts
from hwnas.planning.speed import Precision, TrainingRates, TrainingSpeed
from hwnas.search.engine.rungs import Rungs

__all__ = [
    "BATCH_SIZE",
    "Plan",
    "default_space",
    "make_plan",
    "rates_of",
    "training_values",
]

BATCH_SIZE = 64

_SMALL_IMAGES_SPACE: Mapping[str, Any] = {"name": "union", "preset": "cpu"}
_LARGE_IMAGES_SPACE: Mapping[str, Any] = {"name": "resnet", "preset": "mixed"}
_LARGE_IMAGES = 96  # smallest longer side of large images, in pixels
_SUPERNET_SPACE: Mapping[str, Any] = {"name": "resnet", "preset": "compact"}

_OVERHEAD_MINUTES = 1.2  # calibration, export, timing, the report
_TARGET_MINUTES = 0.35  # calibration of each further target
_FORMAT_MINUTES = 0.3  # conversion, scoring and timing in each further number format
_OVERHEAD_SHARE = 0.03
_LEAST_SHARE = 0.2  # smallest share of the budget for training, whatever the overhead
_REFERENCE_SHARE = 0.75  # time of the reference network over the mean time of a candidate
_SUPERNET_REFERENCE_SHARE = 1 / 6  # time of the reference network over that of all other trainings
_TRAINED = Rungs((1.0,), 2, "similar_cost")  # every candidate is trained to the end


@dataclass(frozen=True)
class _Halving:
    """Option for successive halving: a number of candidates that are trained alone, and its rungs.

    Attributes:
        candidates: Number of candidates.
        rungs: Shares of a full training after which the worse of the candidates of similar latency
            stop.
        epochs: Least epochs of each candidate that is trained to the end if the largest is of
            middle size, for a data set of `_FITTED_IMAGES` images; `_choose_halving` scales them.
        reach: Smallest size of the largest candidate with which this option is chosen: its position
            in the space's range of sizes, in 0..1 on a logarithmic scale.
    """

    candidates: int
    rungs: Rungs
    epochs: float
    reach: float


_HALVINGS = (
    _Halving(24, Rungs((0.1, 0.3, 1.0), 2, "similar_cost"), 200.0, 0.67),
    _Halving(16, Rungs((0.12, 0.35, 1.0), 2, "similar_cost"), 160.0, 0.67),
    _Halving(8, Rungs((0.2, 1.0), 2, "similar_cost"), 160.0, 0.67),
    _Halving(6, _TRAINED, 120.0, 0.5),
    _Halving(5, _TRAINED, 100.0, 0.4),
    _Halving(4, _TRAINED, 80.0, 0.4),
    _Halving(3, _TRAINED, 70.0, 0.4),
    _Halving(2, _TRAINED, 100.0, 0.0),
)
"""Options in order of falling budget; the first one that the budget suffices for is used."""
_FITTED_IMAGES = 4300.0  # training images of the data set on which the epochs were chosen
_MOST_EPOCHS = 400.0  # for that data set
_EPOCHS_POWER = 0.5  # least epochs grow with the size of the largest candidate to this power
_SLOWER = 1.15  # time limit of a training over its expected time
_RANGE = 16.0  # multiply-accumulates of the largest candidate over those of the smallest
_FIRST_RESOLUTION = 0.6
_FULL_RESOLUTION_FROM = 0.6
_PHOTOGRAPH_SIDE = 48  # in pixels; smaller images are cropped less
_SUPERNET_SHARE, _FINETUNE_SHARE = 0.5, 0.4  # of the time; the rest is for the search
_SUPERNET_EPOCHS = 70.0  # least epochs of the largest network, for `_FITTED_IMAGES` images
_WIDTHS = (0.5, 1.0, 1.5, 2.0)  # of the space; multiply-accumulates grow with their square
_SUPERNET_TRIALS = 60
_SUPERNET_TOP = 4
_COMPRESSION_SHARES = 0.15, 0.65  # of the time, as above, for networks with trained weights
_FEWEST_SCORED = 20, 200  # candidates, and validation images of each
_RECALIBRATED = 512  # images on which a candidate's batch normalisation is recalibrated
_FORWARD = 1 / 3  # time of scoring an image over that of training with it
_CONVERSION_SECONDS = 2.0  # of a candidate, to another number format
_COMPRESSION_SPARE = 2  # networks to replace finalists, or further ones
_COMPRESSION_RATES = {True: 4e-3, False: 1e-3}  # learning rates with and without batch norm


@dataclass(frozen=True)
class Plan:
    """Values of a recipe that follow from a budget.

    Attributes:
        values: TOML values by dotted key.
        summary: Description of the work for the user, one line each.
        facts: Data and budget that the plan was made from.
        speeds: Training speeds that the plan was made from.
        slowdown: Training time per image during the search, relative to `speeds`; 1 if it was not
            measured.
    """

    values: Mapping[str, Any]
    summary: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    speeds: tuple[Mapping[str, Any], ...] = ()
    slowdown: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def make_plan(
    facts: JobFacts,
    speeds: Sequence[TrainingSpeed],
    given: Mapping[str, Any] | None = None,
    slowdown: float = 1.0,
) -> Plan:
    """Make the plan of a job: divide its budget among trainings.

    Networks that start from trained weights share them in a supernet, which learns briefly from the
    given model. Other networks are trained alone by successive halving
    (`hwnas.search.engine.rungs`), all for the same number of epochs, since larger networks need
    more time for the same progress, unless the recipe asks for a supernet.
    `experiments/photographs/strategies` compares both strategies.

    Args:
        facts: Data and budget.
        speeds: Training speeds of networks of several sizes.
        given: Values that the recipe sets, by dotted key; only ``search.evaluator`` and
            ``search.trials`` are used.
        slowdown: Training time per image during the search, relative to `speeds`.
    """
    given = given or {}
    precision = _faster(speeds)
    rates = rates_of(speeds).scaled(slowdown)
    if facts.pretrained and given.get("search.evaluator") in (None, "supernet"):
        made = _compression(facts, rates)
    elif _asks_for_supernet(given):
        made = _supernet(facts, rates)
    else:
        made = _halving(facts, rates, given.get("search.trials"))
    default = default_space(given, facts.image_shape)
    space = {f"space.{name}": value for name, value in default.items()}
    values = {**space, **made.values, "train.precision": precision}
    rows = tuple({**asdict(speed), "network": speed.network.id} for speed in speeds)
    return replace(made, values=values, facts=asdict(facts), speeds=rows, slowdown=slowdown)


def rates_of(speeds: Sequence[TrainingSpeed]) -> TrainingRates:
    """Return the training speed in the precision that a plan uses."""
    precision = _faster(speeds)
    return TrainingRates.of([speed for speed in speeds if speed.precision == precision])


def default_space(given: Mapping[str, Any], image_shape: tuple[int, int, int]) -> Mapping[str, Any]:
    """Return the table ``[space]`` of a recipe that names no space.

    Args:
        given: Values that the recipe sets, by dotted key; only ``search.evaluator`` is used.
        image_shape: Height, width and channels of the images.
    """
    if _asks_for_supernet(given):
        return _SUPERNET_SPACE
    return _LARGE_IMAGES_SPACE if max(image_shape[:2]) >= _LARGE_IMAGES else _SMALL_IMAGES_SPACE


def _asks_for_supernet(given: Mapping[str, Any]) -> bool:
    return given.get("search.evaluator") == "supernet"


def _halving(facts: JobFacts, rates: TrainingRates, wanted: int | None) -> Plan:
    """Plan trainings of single networks by successive halving among networks of similar size."""
    if wanted is not None:
        wanted = max(1, wanted // facts.formats)
    candidates, rungs, macs = _choose_halving(facts, rates, wanted)
    epochs = min(_of_data(facts, _MOST_EPOCHS), _epochs(facts, rates, candidates, rungs, macs))
    finalists = candidates
    for _ in rungs.rungs[1:]:
        finalists = rungs.left(finalists)
    finalists = round(finalists * (1 + facts.formats) / 2)  # about as many as the front has
    trained, most = _candidates(rates, candidates, macs)
    shortest, mean, longest = (
        _minutes(facts, seconds, epochs) for seconds in (trained[0], float(np.mean(trained)), most)
    )
    values = {
        **_common(facts),
        **training_values(facts, _SLOWER * longest),
        **({"train.ema": 0.0} if rungs == _TRAINED else {}),  # see experiments/photographs/ablation
        "train.epochs": _rounded(epochs),
        "search.evaluator": "train",
        "search.trials": candidates * facts.formats,
        "search.batch": candidates * facts.formats,
        "search.sampler": "stratified",
        "search.options.most_macs": macs,
        "search.fidelity.rungs": list(rungs.rungs),
        "search.fidelity.keep": rungs.keep,
        "search.fidelity.compare": rungs.compare,
        "deploy.top": finalists,
        "deploy.finetune_epochs": 0.0,
        "deploy.reference_minutes": _rounded(_REFERENCE_SHARE * mean),
    }
    stops = [f"{share * epochs:.0f}" for share in rungs.rungs]
    halving = (
        f", then the best of every {rungs.keep} of similar latency for {' and '.join(stops[1:])} "
        "in all"
    )
    summary = (
        f"{candidates} networks of up to {macs / 1e6:.3g} M multiply-accumulates are trained, "
        f"{facts.cores} at a time: all for {stops[0]} epochs{halving if len(stops) > 1 else ''}"
        f"{f'; each is scored in {facts.formats} number formats' if facts.formats > 1 else ''}",
        f"a full training takes {shortest:.1f} minutes for the smallest, {longest:.1f} for the "
        f"largest; {finalists} become bundles",
    )
    return Plan(values, summary)


def _choose_halving(
    facts: JobFacts, rates: TrainingRates, wanted: int | None
) -> tuple[int, Rungs, float]:
    """Return the number of candidates, their rungs, and the largest candidate's MACs."""
    least, largest = rates.sizes[0], _largest(facts, rates)
    sizes = np.geomspace(min(2 * least, largest), largest, 50)
    low, high = math.log(least), math.log(largest)
    middle = math.sqrt(math.prod(rates.sizes))
    # Before the last rung, each format of a network is trained apart.
    options = [each for each in _HALVINGS if facts.formats == 1 or each.rungs == _TRAINED]
    if wanted is not None:
        able = [each for each in options if each.candidates <= wanted] or options[-1:]
        options = [replace(able[0], candidates=wanted)]
    for way in options:
        count, rungs = way.candidates, way.rungs
        needed = _of_data(facts, way.epochs) * (sizes / middle) ** _EPOCHS_POWER
        epochs = [_epochs(facts, rates, count, rungs, size) for size in sizes]
        enough = sizes[np.array(epochs) >= needed]
        most = _rounded(max(enough, default=sizes[0]))
        if math.log(most) >= low + way.reach * (high - low):
            break
    return count, rungs, most


def _largest(facts: JobFacts, rates: TrainingRates) -> float:
    """Return the multiply-accumulates of the largest network that meets the limits."""
    least, largest = rates.sizes
    return largest if facts.most_macs is None else min(largest, max(least, facts.most_macs))


def _of_data(facts: JobFacts, epochs: float) -> float:
    """Scale epochs to the size of the data: four times as many images get half the epochs."""
    return epochs * math.sqrt(_FITTED_IMAGES / facts.images)


def _epochs(
    facts: JobFacts, rates: TrainingRates, candidates: int, rungs: Rungs, macs: float
) -> float:
    """Return the epochs of each candidate that fill the budget."""
    running, longest = _candidates(rates, candidates, macs)
    before, seconds, reference = 0.0, 0.0, _REFERENCE_SHARE * float(np.mean(running))
    for share in rungs.rungs:
        part = share - before
        ends = _makespan([part * each for each in running], facts.cores, reference)
        seconds += max(ends, part * longest)
        # One in `keep` networks of similar size is promoted.
        left = rungs.left(len(running))
        running = [float(np.mean(each)) for each in np.array_split(running, left)]
        before, reference = share, 0.0
    minutes = _core_minutes(facts) / facts.cores
    return minutes / _minutes(facts, seconds, 1.0)


def _candidates(rates: TrainingRates, count: int, macs: float) -> tuple[list[float], float]:
    """Return seconds per image of each candidate, smallest first, and the maximum at ``macs``."""
    sizes = np.geomspace(max(macs / _RANGE, rates.sizes[0]), macs, count)
    return [rates.seconds(size)[0] for size in sizes], rates.seconds(macs)[1]


def _makespan(seconds: Sequence[float], cores: int, first: float = 0.0) -> float:
    """Return the makespan of trainings if each free core takes the longest training left.

    This is longest-processing-time-first scheduling (Graham, SIAM J. Applied Mathematics 1969).

    Args:
        seconds: Time of each training, in any unit.
        cores: Number of trainings at once.
        first: Time of a training that starts before all others.
    """
    ends = [0.0] * (cores - 1) + [first]
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def _minutes(facts: JobFacts, seconds: float, epochs: float) -> float:
    """Return the minutes of a training from its seconds per image and its epochs."""
    return seconds * epochs * facts.images / 60


def _supernet(facts: JobFacts, rates: TrainingRates) -> Plan:
    """Plan the training of a supernet, a search among its networks, and fine-tuning of the best."""
    wall = _core_minutes(facts) / facts.cores
    wall /= 1 + _SUPERNET_REFERENCE_SHARE
    train, finetune = _SUPERNET_SHARE * wall, _FINETUNE_SHARE * wall

    def epochs(size: float, core_minutes: float) -> float:
        return core_minutes / _minutes(facts, rates.seconds(size)[1], 1.0)

    sizes = np.geomspace(rates.sizes[0], _largest(facts, rates), 100)
    least = _of_data(facts, _SUPERNET_EPOCHS)
    able = [s for s in sizes if epochs(s, train * facts.trainers / 2) >= least]
    macs = max(able, default=2 * sizes[0])
    widest = _WIDTHS[-1] * math.sqrt(macs / rates.sizes[1])
    values = {
        **_common(facts),
        "space.width": [width for width in _WIDTHS if width <= widest] or [_WIDTHS[0]],
        **training_values(facts, train),
        "train.workers": facts.trainers,
        "search.trials": _SUPERNET_TRIALS,
        "search.options.start": _SUPERNET_TRIALS // 3,
        "deploy.top": _SUPERNET_TOP,
        "deploy.finetune_minutes": _rounded(finetune * facts.trainers / _SUPERNET_TOP),
    }
    summary = (
        f"a supernet is trained for {train:.1f} minutes, about "
        f"{epochs(macs, train * facts.trainers):.0f} epochs of a network of "
        f"{macs / 1e6:.3g} M multiply-accumulates",
        f"{_SUPERNET_TRIALS} networks are evaluated; {_SUPERNET_TOP} are fine-tuned for "
        f"{values['deploy.finetune_minutes']:.1f} minutes each",
    )
    return Plan(values, summary)


def _compression(facts: JobFacts, rates: TrainingRates) -> Plan:
    """Plan a supernet that starts from a trained model, a search, and fine-tuning of the best.

    A few networks replace finalists that lose more than is allowed, or become finalists, too.
    """
    wall = _core_minutes(facts) / facts.cores
    train, finetune = (share * wall for share in _COMPRESSION_SHARES)
    each = _rounded(finetune * facts.trainers / (_SUPERNET_TOP + _COMPRESSION_SPARE))
    rate = _COMPRESSION_RATES[facts.batch_norm]
    trials, images = _scored(facts, rates, (1 - sum(_COMPRESSION_SHARES)) * wall)
    values = {
        **_common(facts),
        "deploy.reference": True,
        "train.budget_minutes": _rounded(train),
        "train.batch_size": _batch_size(facts),
        "train.learning_rate": rate,
        "train.workers": facts.trainers,
        "search.evaluator": "supernet",
        "search.trials": trials,
        "deploy.top": _SUPERNET_TOP,
        "deploy.replacements": 1,
        "deploy.spare": _COMPRESSION_SPARE,
        "deploy.finetune_minutes": each,
        "deploy.finetune_learning_rate": rate,
    }
    if images < facts.validation_images:
        values["search.validation_images"] = images
    if facts.kind in ("classes", "values"):
        values["train.teacher_sees"] = "plain"
    if facts.kind != "values":
        photographs = _are_photographs(facts)
        values |= {
            "train.flip": facts.image_shape[2] == 3,
            "train.crop": 0.8 if photographs else 1.0,
            "train.shift_pixels": 0 if photographs else 2,
        }
    summary = (
        f"smaller networks within the given model learn from it together for {train:.1f} minutes",
        f"{trials} are evaluated; {_SUPERNET_TOP} are fine-tuned for {each:.1f} minutes "
        f"each, then {_COMPRESSION_SPARE} more, which replace those that lose too much",
    )
    return Plan(values, summary)


def _scored(facts: JobFacts, rates: TrainingRates, minutes: float) -> tuple[int, int]:
    """Return how many candidates can be scored in some minutes, on how many validation images."""
    most, (fewest, least) = _SUPERNET_TRIALS * (1 + facts.formats) // 2, _FEWEST_SCORED
    seconds = 60 * minutes * facts.cores
    each = rates.seconds(math.sqrt(math.prod(rates.sizes)))[0] * _FORWARD
    fixed = each * _RECALIBRATED + (_CONVERSION_SECONDS if facts.converts else 0.0)
    trials = int(seconds / (fixed + each * facts.validation_images))
    if trials >= fewest:
        return min(trials, most), facts.validation_images
    images = max(least, int((seconds / fewest - fixed) / each))
    return fewest, min(images, facts.validation_images)


def _common(facts: JobFacts) -> dict[str, Any]:
    """Return the values that all strategies have."""
    return {
        "space.resolution": [max(facts.image_shape[:2])],
        "search.workers": facts.cores,
        "predictor.networks": 12,
        "deploy.reference": facts.kind in ("classes", "values"),
    }


def training_values(facts: JobFacts, minutes: float) -> dict[str, Any]:
    """Return the values of ``[train]`` by dotted key.

    Args:
        facts: Data and budget.
        minutes: Time limit of one training.
    """
    photographs = _are_photographs(facts)
    values: dict[str, Any] = {
        "train.budget_minutes": _rounded(minutes),
        "train.batch_size": _batch_size(facts),
        "train.learning_rate": 4e-3,
        "train.weight_decay": 0.05,
        "train.ema": 0.995,
        "train.first_resolution": _FIRST_RESOLUTION,
        "train.full_resolution_from": _FULL_RESOLUTION_FROM,
        "train.workers": 1,
    }
    if facts.kind != "values":
        values |= {
            "train.crop": 0.4 if photographs else 0.6,
            "train.shift_pixels": 0,
            "train.cutmix": 0.0 if facts.kind == "boxes" else 0.5,
            "train.flip": facts.image_shape[2] == 3,
        }
    return values


def _batch_size(facts: JobFacts) -> int:
    return min(BATCH_SIZE, max(2, facts.images // 8))


def _are_photographs(facts: JobFacts) -> bool:
    return max(facts.image_shape[:2]) >= _PHOTOGRAPH_SIDE


def _rounded(value: float) -> float:
    """Round to three significant digits, which are easier to read."""
    return float(f"{value:.3g}")


def _core_minutes(facts: JobFacts) -> float:
    """Return the core-minutes that are left for training."""
    overhead = facts.spent_minutes + _OVERHEAD_MINUTES + _OVERHEAD_SHARE * facts.minutes
    overhead += _TARGET_MINUTES * (facts.targets - 1) + _FORMAT_MINUTES * (facts.formats - 1)
    return max(_LEAST_SHARE * facts.minutes, facts.minutes - overhead) * facts.cores


def _faster(speeds: Sequence[TrainingSpeed]) -> Precision:
    """Return the precision in which all networks together train fastest.

    A precision in which some network was not timed is excluded: it was far slower for a smaller
    network.
    """
    by_precision = {
        precision: [speed for speed in speeds if speed.precision == precision]
        for precision in sorted({speed.precision for speed in speeds})
    }
    most = max(len(found) for found in by_precision.values())
    seconds = {
        precision: sum(1 / speed.images_per_s for speed in found)
        for precision, found in by_precision.items()
        if len(found) == most
    }
    return min(seconds, key=seconds.__getitem__)
