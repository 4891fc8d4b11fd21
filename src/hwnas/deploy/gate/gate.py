"""Regression gate: checks the costs and the metric of a network, also against an older network.

Limits concern one network. Growth concerns two: each is loaded into several sessions, the timing of
all sessions is interleaved, and a cost has grown if the confidence interval of the difference
between the means lies above the allowed growth. One session per network would not suffice: because
of memory placement, sessions of the same file differ by more than the timing rounds of one session.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement, TimedNetwork
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.deploy.measurement.timing import measure_together
from hwnas.deploy.onnx.graph import model_bytes
from hwnas.deploy.onnx.workload import read_workload
from hwnas.deploy.quantization.saturation import saturation_warning
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.targets.target import Target
from hwnas.deploy.variants.quality import OutputEvaluator, Quality
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ConfigError
from hwnas.plugin import closest

__all__ = ["COSTS", "CostBudget", "CostCheck", "budget_of", "gate", "read_budget"]

COSTS = {
    "p50_ms": "ms",
    "p95_ms": "ms",
    "size_bytes": "bytes",
    "peak_memory_bytes": "bytes",
}
"""Costs of a network, with their units. A budget may also name the task's metric."""
_LOADINGS, _PROCESSES = 4, 3
_CONFIDENCE = 0.95
# One run per round, so that p95 is that of single runs.
_TIMING = TimingSettings(warmup=5, rounds=60, round_ms=1e-3, max_seconds=5.0)


@dataclass(frozen=True)
class CostBudget:
    """Allowed costs and metric of a network on a target.

    Attributes:
        target: Target on which the network runs.
        limits: Limits by name: for a name of `COSTS` the maximum; for the task's metric the
            minimum, or the maximum if less is better.
        growth: Allowed degradation from the old network by the same names, beyond noise: a share of
            the old cost, or for the metric a difference in its unit. 0 for names that are not
            given.
        data: Images for the evaluation, as ``data.source`` of a recipe; those of the run if None.
    """

    target: Target
    limits: Mapping[str, float] = field(default_factory=dict, hash=False)
    growth: Mapping[str, float] = field(default_factory=dict, hash=False)
    data: str | None = None

    @property
    def metrics(self) -> set[str]:
        """Names that are not costs, so they have to be the task's metric."""
        return {*self.limits, *self.growth} - set(COSTS)


@dataclass(frozen=True)
class CostCheck:
    """Result of the check of one cost, or of the metric.

    Attributes:
        name: Name of the cost or of the metric.
        unit: Unit of the numbers.
        kind: Origin of the numbers: measured, counted or evaluated.
        value: Value of the network.
        limit: Limit of the value, or None.
        old: Value of the old network, or None.
        growth: Degradation from the old network: a share of the old cost, or for the metric a
            difference in its unit.
        interval: 95 % confidence interval of the growth.
        allowed: Allowed growth.
        ok: True if the limit and the allowed growth are met.
        note: Further information, such as a warning.
    """

    name: str
    unit: str
    kind: Literal["measured", "counted", "evaluated"]
    value: float
    limit: float | None = None
    old: float | None = None
    growth: float | None = None
    interval: tuple[float, float] | None = None
    allowed: float = 0.0
    ok: bool = True
    note: str = ""

    @property
    def failure(self) -> str:
        """Description of the failure in one line; empty if the check passed."""
        if self.ok:
            return ""
        if self.grown:
            assert self.interval is not None
            assert self.growth is not None
            by, *ends, allowed = map(self._growth_text, (self.growth, *self.interval, self.allowed))
            return (
                f"{self.name} got worse by {by} ({' to '.join(ends)}) from {self.old:.6g} to "
                f"{self.value:.6g} {self.unit}; at most {allowed} is allowed"
            )
        return f"{self.name} is {self.value:.6g} {self.unit}; the limit is {self.limit:.6g}"

    def _growth_text(self, growth: float) -> str:
        return f"{growth:.3g}" if self.kind == "evaluated" else f"{100 * growth:.3g} %"

    @property
    def grown(self) -> bool:
        """True if the degradation from the old network exceeds the allowed growth beyond noise."""
        return self.interval is not None and self.interval[0] > self.allowed

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "failure": self.failure}


def read_budget(path: Path) -> CostBudget:
    """Read a budget from a TOML file with ``target``, ``data``, ``[limits]`` and ``[growth]``.

    Raises:
        ConfigError: The file is missing or not TOML, or a key or a value is wrong.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the budget {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return budget_of(table, str(path))


def budget_of(table: Mapping[str, Any], where: str = "budget") -> CostBudget:
    """Return the budget that a table with ``target``, ``data``, ``limits`` and ``growth`` holds.

    Args:
        table: The table.
        where: Where it is from, for messages.

    Raises:
        ConfigError: A key or a value is wrong.
    """
    known = ("target", "data", "limits", "growth")
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; {closest(key, known)}")
    if not isinstance(table.get("target"), str):
        raise ConfigError(f"{where}: target is missing; give one, e.g. cpu-onnxruntime-fp32-b1-t1")
    data = table.get("data")
    if data is not None and not isinstance(data, str):
        raise ConfigError(
            f"{where}: data is {data!r}; expected text, as in data.source of a recipe"
        )
    limits, growth = (_numbers(where, table, name) for name in ("limits", "growth"))
    return CostBudget(Target.parse(table["target"]), limits, growth, data)


def _numbers(where: str, table: Mapping[str, Any], name: str) -> dict[str, float]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{where}: {name} is {section!r}; expected a table of numbers")
    for key, value in section.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ConfigError(f"{where}: {name}.{key} is {value!r}; expected a number, 0 or more")
    return {key: float(value) for key, value in section.items()}


def gate(
    model: Path,
    budget: CostBudget,
    old: Path | None = None,
    evaluator: OutputEvaluator | None = None,
    settings: TimingSettings = _TIMING,
) -> list[CostCheck]:
    """Check a network against all limits and growths of a budget.

    Args:
        model: ONNX file of the network.
        budget: Allowed costs and metric.
        old: ONNX file of the old network, against which growth is checked.
        evaluator: Evaluator of outputs on images with targets, if there are any.
        settings: Timing settings.

    Returns:
        A check of each cost, and of the metric if there are images.

    Raises:
        ConfigError: The budget names a metric that is not the task's, there are no images for it,
            its target is a remote device, or a file has another number format than the target.
        ArtifactError: A file is damaged or does not run on the target.
        DeviceError: The target cannot be used on this machine, or memory cannot be measured.
    """
    if not budget.target.device.is_here:
        raise ConfigError(
            f"the budget's target {budget.target.name} is a remote device, on which memory cannot "
            "be measured; run the check on that device, with cpu in place of its name"
        )
    for file in (model,) if old is None else (model, old):
        _check_format(file, budget.target)
    qualities = [] if evaluator is None else [_quality(model, old, evaluator, budget)]
    _check_metrics(budget, {quality.name for quality in qualities})
    verdicts: list[CostCheck] = [
        *qualities,
        *_latencies(model, old, budget, settings),
        _size(model, old, budget),
        _memory(model, old, budget),
    ]
    notes = [verdicts[0].note, saturation_warning(model, budget.target)]
    verdicts[0] = replace(verdicts[0], note="; ".join(filter(None, notes)))
    return verdicts


def _check_metrics(budget: CostBudget, metrics: set[str]) -> None:
    for name in sorted(budget.metrics - metrics):
        if not metrics:
            raise ConfigError(
                f"the budget has {name!r}, which is not a cost ({', '.join(COSTS)}); to check a "
                "metric, set data to a source of images"
            )
        raise ConfigError(
            f"unknown name {name!r} in the budget; {closest(name, {*COSTS, *metrics})}"
        )


def _check_format(model: Path, target: Target) -> None:
    """Raise if a file does not have the target's number format, so it is not the deployed file."""
    found, wanted = number_format(model), target.format
    if found != wanted and (found, wanted) != ("fp32", "bf16"):
        raise ConfigError(
            f"{model} computes in {found}, but the budget's target is {target.name}; give the file "
            f"that is deployed, or a target with {found}"
        )


def _quality(
    model: Path, old: Path | None, evaluator: OutputEvaluator, budget: CostBudget
) -> CostCheck:
    outputs = outputs_of(model, evaluator.inputs(), budget.target)
    expected = outputs if old is None else outputs_of(old, evaluator.inputs(), budget.target)
    found: Quality = evaluator.judge(outputs, expected)
    low, high = found.interval.ends
    verdict = CostCheck(
        found.metric,
        found.unit,
        "evaluated",
        found.value,
        budget.limits.get(found.metric),
        allowed=budget.growth.get(found.metric, 0.0),
        note=f"{low:.4g} to {high:.4g} on {found.n} {found.split} images",
    )
    more = found.direction == "maximize"
    if old is not None:
        verdict = replace(
            verdict,
            old=found.value + (found.loss if more else -found.loss),
            growth=found.loss,
            interval=(found.loss_interval.low, found.loss_interval.high),
        )
    return _judged(verdict, more)


def _judged(verdict: CostCheck, more_is_better: bool = False) -> CostCheck:
    kept = verdict.limit is None or (
        verdict.value >= verdict.limit if more_is_better else verdict.value <= verdict.limit
    )
    return replace(verdict, ok=kept and not verdict.grown)


def _latencies(
    model: Path, old: Path | None, budget: CostBudget, settings: TimingSettings
) -> list[CostCheck]:
    files = {"new": model} if old is None else {"new": model, "old": old}
    # Interleaved, so that the sessions of one file are not all loaded before those of the other.
    subjects = {
        f"{side} {loading}": TimedNetwork(file, budget.target)
        for loading in range(_LOADINGS)
        for side, file in files.items()
    }
    measured = measure_together(subjects, settings)
    contended = any(measurement.contended for measurement in measured.values())
    verdicts = []
    for name in ("p50_ms", "p95_ms"):
        new, before = (
            [_quantile(measured[f"{side} {i}"], name) for i in range(_LOADINGS)]
            if side in files
            else None
            for side in ("new", "old")
        )
        assert new is not None
        note = "timing was disturbed" if contended else ""
        verdicts.append(_cost(name, "measured", new, before, budget, note))
    return verdicts


def _quantile(measurement: Measurement, name: str) -> float:
    found = measurement.headline.p50 if name == "p50_ms" else measurement.headline.p95
    assert found is not None
    return found


def _size(model: Path, old: Path | None, budget: CostBudget) -> CostCheck:
    before = None if old is None else [float(model_bytes(old))]
    return _cost("size_bytes", "counted", [float(model_bytes(model))], before, budget)


def _memory(model: Path, old: Path | None, budget: CostBudget) -> CostCheck:
    workload = read_workload(model, budget.target.device.batch).workload
    bound = workload.weight_bytes + workload.peak_activation_bytes
    note = f"weights and simultaneously live tensors have {bound:,} bytes (counted)"
    found = _peaks(model, budget.target)
    before = None if old is None else _peaks(old, budget.target)
    return _cost("peak_memory_bytes", "measured", found, before, budget, note)


def _peaks(model: Path, target: Target) -> list[float]:
    """Return the peak memory, in bytes, of several fresh processes."""
    return [float(peak_memory(model, target, 1).peak_bytes) for _ in range(_PROCESSES)]


def _cost(
    name: str,
    kind: Literal["measured", "counted"],
    new: Sequence[float],
    before: Sequence[float] | None,
    budget: CostBudget,
    note: str = "",
) -> CostCheck:
    """Return the check of a cost from repeated readings of the network and of the old network."""
    verdict = CostCheck(
        name,
        COSTS[name],
        kind,
        float(np.median(new)),
        budget.limits.get(name),
        allowed=budget.growth.get(name, 0.0),
        note=note,
    )
    if before is not None:
        growth, interval = _growth(new, before)
        old = float(np.median(before))
        verdict = replace(verdict, old=old, growth=growth, interval=interval)
    return _judged(verdict)


def _growth(new: Sequence[float], old: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the relative growth of the geometric mean, and its confidence interval.

    The interval is that of Welch's t-test on logarithms.
    """
    logs = np.log(np.maximum(new, 1e-12)), np.log(np.maximum(old, 1e-12))
    difference = float(logs[0].mean() - logs[1].mean())
    errors = [side.var(ddof=1) / len(side) if len(side) > 1 else 0.0 for side in logs]
    total = float(sum(errors))
    half = 0.0
    if total > 0:
        freedom = total**2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, logs, strict=True))
        half = float(stats.t.ppf(0.5 + _CONFIDENCE / 2, freedom)) * total**0.5
    low, high = np.expm1([difference - half, difference + half]).tolist()
    return float(np.expm1(difference)), (low, high)
