"""Summary of a run's results, for the terminal, for scripts and for the report."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hwnas.atomic import write_text
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.target import Target
from hwnas.interval import is_proportion, metric_interval
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.run_folder import RunFolder
from hwnas.search import Metric, Scored, SearchResult
from hwnas.search.objectives.objective import LATENCY, Objective, label_on
from hwnas.stages.finalists.bundles import (
    chosen_target,
    delivered_bytes,
    device_objectives,
    latency_of,
    main_cost,
    picks,
    read_bundles,
    score_of,
)
from hwnas.stages.finalists.limits import (
    LimitCheck,
    LimitState,
    costs_of,
    limit_messages,
    of_bundle,
    overall,
    recheck,
    shortfall,
)
from hwnas.stages.finalists.reference import (
    GIVEN_MODEL,
    REFERENCE,
    reference_name,
    references_of,
)
from hwnas.stages.finalists.shortlist import read_tried
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.search import found

__all__ = [
    "FrontRow",
    "RunResult",
    "breaking",
    "cells",
    "checks_of",
    "example_image",
    "example_text",
    "front_row",
    "summarise",
    "summary_of",
    "units_of",
    "write_front",
]


_COUNTS = ("macs", "params", "weight_bytes")


@dataclass(frozen=True)
class FrontRow:
    """Network of the front, or a finalist from a further front.

    Attributes:
        id: Id of the candidate.
        picks: Names under which it is picked, e.g. ``("knee",)``.
        values: Values of the search, by objective label.
        standard_errors: Standard errors of the task's metrics, by name.
        test: The task's first metric on the test split after fine-tuning; None for non-finalists.
        test_of_seeds: The same metric of each fine-tuning, if there were several.
        predicted_latency_ms: Prediction of the first latency objective; None where there is none.
        measured_latency_ms: Measurement of the first latency objective; None for non-finalists.
        predicted_ms: Predicted latency on each target, by its name.
        measured_ms: Measured latency on each target, by its name; empty for non-finalists.
        predicted: Predictions of all metrics on targets, by label.
        measured: Measurements of all metrics on targets, by label; empty for non-finalists.
        macs: Multiply-accumulates of one image.
        params: Number of trainable parameters.
        weight_bytes: Size of the weights in single precision or, if the network has bit widths of
            its own, packed.
        bundle: Path of the finalist's bundle, relative to the run; None for others.
        architecture: Choices of the architecture, and of the candidate's further roles.
        intervals: Ends of the 95 % intervals of the task's metrics, by name.
        limits: Limit checks of candidates that were made into finalists, including replaced ones;
            empty for all others.
        target: Target that the network ships for, if an objective chooses among several by
            ``reduce = "min"``: that of the least cost, measured or else predicted. Otherwise None.
        file_bytes: Size of the finalist's file for its target; None for others.
    """

    id: str
    picks: tuple[str, ...]
    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    test: float | None
    predicted_latency_ms: float | None
    measured_latency_ms: float | None
    predicted_ms: Mapping[str, float]
    measured_ms: Mapping[str, float]
    macs: int
    params: int
    weight_bytes: int
    bundle: str | None
    architecture: Mapping[str, Any]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    limits: tuple[LimitCheck, ...] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    test_of_seeds: tuple[float, ...] = ()
    target: str | None = None
    file_bytes: int | None = None

    @property
    def limit_state(self) -> LimitState | None:
        """State of the limits as measured; None if there are none, or if they were not checked."""
        return overall(self.limits) if self.limits else None

    @property
    def missed_limits(self) -> list[str]:
        """Line for each limit that the network does not keep."""
        return limit_messages(self.limits)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields of this row."""
        return {**asdict(self), "limit_state": self.limit_state}


@dataclass(frozen=True)
class RunResult:
    """Result of one search of a run.

    Attributes:
        run: Folder of the run.
        output: Folder of front, bundles and report.
        metric: Name of the task's first metric.
        objectives: Objectives of the search.
        trials: Number of candidates that were evaluated.
        front: Networks of the front, and finalists.
        report: Path of the report; None if it was not written.
        reference: Reference network, if the recipe asks for one and it was made.
        reference_name: Its name for the user; empty without one.
        beats_reference: Ids of the finalists that are at least as accurate on validation images as
            the reference network at no more latency, and better in one of the two. Without an
            objective latency_ms, the first other metric on devices takes its place.
        conversions: Reference network in smaller number formats, if it is the model that a
            compression starts from.
    """

    run: Path
    output: Path
    metric: str
    objectives: tuple[Objective, ...]
    trials: int
    front: tuple[FrontRow, ...]
    report: Path | None
    reference: FrontRow | None = None
    reference_name: str = ""
    beats_reference: tuple[str, ...] = ()
    conversions: tuple[FrontRow, ...] = ()

    @property
    def references(self) -> tuple[FrontRow, ...]:
        """Reference network and its conversions; empty without one."""
        return () if self.reference is None else (self.reference, *self.conversions)

    @property
    def verdict(self) -> str | None:
        """One line that compares the finalists with the reference network; None without one."""
        if self.reference is None or not self.finalists:
            return None
        network = self.reference_name
        if network == GIVEN_MODEL:
            return self._savings(self.reference)
        where, costs = f"in {self.metric.replace('_', ' ')}", device_objectives(self.objectives)
        if costs:
            where += f" or {DEVICE_METRICS[costs[0].metric].noun} without being worse in the other"
        if self.beats_reference:
            beat = "beats" if len(self.beats_reference) == 1 else "beat"
            share = f"{len(self.beats_reference)} of {len(self.finalists)} finalists"
            return f"{share} {beat} {network} {where}"
        return (
            f"no finalist beats {network} {where}: give the job more minutes, or use that network, "
            f"which is also a bundle: {self.run / str(self.reference.bundle)}"
        )

    def _savings(self, given: FrontRow) -> str:
        """Return one line that says what the finalists save of the given model's cost."""
        keeping = [row for row in self.finalists if row.limit_state in (None, "kept")]
        if not keeping:
            return (
                f"no finalist loses as little against {GIVEN_MODEL} as the limits allow: give the "
                "job more minutes, or allow a larger loss"
            )
        measured = given.measured_latency_ms is not None
        costs = {
            row.id: float(row.measured_latency_ms or math.inf) if measured else float(row.macs)
            for row in (*keeping, *self.references)
        }
        best = min(keeping, key=lambda row: costs[row.id])
        cost = "latency" if measured else "multiply-accumulates"
        share = f"{costs[best.id] / costs[given.id]:.2g}"
        text = f"{best.id} takes {share} of the {cost} of {GIVEN_MODEL}"
        if measured and best.target != given.target and best.target and given.target:
            text += f" ({best.target}, and {given.target})"
        tests = {"": given.test}
        for row in self.conversions if measured else ():
            name = row.id.removeprefix(f"{REFERENCE}-")
            text += f", and {costs[best.id] / costs[row.id]:.2g} of that model's in {name}"
            tests[f" in {name}"] = row.test
        if best.test is None or None in tests.values():
            return text
        shown = ", ".join(f"{value:.4g}{where}" for where, value in tests.items())
        return f"{text}; {self.metric} on test images {best.test:.4g} ({shown})"

    @property
    def finalists(self) -> tuple[FrontRow, ...]:
        """Rows that have a bundle."""
        return tuple(row for row in self.front if row.bundle is not None)

    @property
    def next_commands(self) -> tuple[str, ...]:
        """Commands to try next."""
        if not self.finalists:
            return (f"hwnas resume {self.run}",)
        best = min(self.finalists, key=lambda row: shortfall(row.limits))
        bundle = self.run / str(best.bundle)
        example = example_image(self.run)
        on_targets = any(objective.all_targets for objective in self.objectives)
        added = self.output != self.run  # by `specialise`, whose folders have the targets' names
        of_target = f" --target {self.output.name}" if added else ""
        # If all break a limit, there are no picks, and only an id can be exported.
        pick = "knee" if best.limit_state != "broken" else best.id
        formats = {Target.parse(target).format for target in best.measured_ms}
        number_format = "int8" if formats == {"int8"} else "fp32"
        further = f"hwnas specialise {self.run} --target cpu-onnxruntime-{number_format}-b8-t1"
        return (
            f"hwnas export {self.run}{of_target} --pick {pick} --out my-model",
            f"hwnas verify {bundle}",
            (
                f'hwnas generate {bundle} "The "'
                if example_text(self.run).exists()
                else f"hwnas run {bundle} {example if example.exists() else 'image.png'}"
            ),
            *([further] if on_targets and not added else []),
        )

    def with_limits(self, checks: Mapping[str, tuple[LimitCheck, ...]]) -> RunResult:
        """Return the same summary with limit checks of networks, given by id."""
        rows = tuple(replace(row, limits=checks.get(row.id, ())) for row in self.front)
        return replace(self, front=rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for scripts."""
        return {
            "run": str(self.run),
            "output": str(self.output),
            "metric": self.metric,
            "objectives": [{**asdict(o), "label": o.label} for o in self.objectives],
            "trials": self.trials,
            "front": [row.to_json() for row in self.front],
            "report": None if self.report is None else str(self.report),
            "reference": None if self.reference is None else self.reference.to_json(),
            "reference_name": self.reference_name,
            "beats_reference": list(self.beats_reference),
            "conversions": [row.to_json() for row in self.conversions],
            "verdict": self.verdict,
            "next_commands": list(self.next_commands),
        }


def example_image(run: Path) -> Path:
    """Return the path of the example image of a run."""
    return run / "example.png"


def example_text(run: Path) -> Path:
    """Return the path of the example text of a run, which has text in place of images."""
    return run / "example.txt"


def summarise(job: Job, goal: SearchGoal) -> RunResult:
    """Read the results of a goal from the run folder."""
    metric = job.run_inputs.task.metrics[0]
    bundles = read_bundles(job.folder.output(goal.target) / "bundles")
    result, names = found(job.folder.path, goal), picks(bundles, metric, goal.objectives)
    summary = summary_of(job.folder, goal, result, bundles, names, metric.name)
    references = references_of(job, goal)
    if not references:
        return summary
    bundle = references[REFERENCE]
    row, *conversions = (
        _reference_row(job.folder.path, goal, each, metric.name, name)
        for name, each in references.items()
    )
    return replace(
        summary,
        reference=row,
        reference_name=reference_name(job.run_inputs, bundle),
        beats_reference=better(bundles, bundle, metric, goal.objectives),
        conversions=tuple(conversions),
    )


def better(
    bundles: Mapping[str, Bundle], other: Bundle, metric: Metric, objectives: Sequence[Objective]
) -> tuple[str, ...]:
    """Return the ids of bundles that dominate another one in validation score and first cost."""

    def losses_of(bundle: Bundle) -> tuple[float, float]:
        sign = -1.0 if metric.direction == "maximize" else 1.0
        score = sign * score_of(bundle, metric.name, "validation")["value"]
        return score, main_cost(bundle, objectives) or 0.0

    there = losses_of(other)
    return tuple(
        name
        for name, bundle in bundles.items()
        if (here := losses_of(bundle)) != there
        and all(a <= b for a, b in zip(here, there, strict=True))
    )


def _reference_row(run: Path, goal: SearchGoal, bundle: Bundle, metric: str, name: str) -> FrontRow:
    """Return the reference network, or a conversion of it, as a row of the table."""
    counted = {
        row["name"]: row["value"]
        for row in bundle.description["metrics"]
        if row["kind"] == "counted"
    }
    validation = score_of(bundle, metric, "validation")
    return FrontRow(
        id=name,
        picks=(name,),
        values={metric: validation["value"]},
        standard_errors={metric: validation["standard_error"]},
        test=score_of(bundle, metric, "test")["value"],
        predicted_latency_ms=None,
        measured_latency_ms=latency_of(bundle, goal.objectives),
        predicted_ms={},
        measured_ms={m.target: m.latency_ms for m in bundle.measurements},
        measured={label: cost.value for label, cost in costs_of(bundle).items()},
        **{name: counted[name] for name in _COUNTS},
        bundle=str(bundle.folder.relative_to(run)),
        architecture=bundle.description["architecture"]["values"],
        intervals={metric: tuple(validation["interval"])},
        test_of_seeds=tuple(score_of(bundle, metric, "test").get("of_seeds", ())),
        target=chosen_target(bundle, goal.objectives),
        file_bytes=delivered_bytes(bundle, goal.objectives),
        limits=of_bundle(bundle, goal.objectives),
    )


def summary_of(
    folder: RunFolder,
    goal: SearchGoal,
    result: SearchResult,
    bundles: Mapping[str, Bundle],
    names: Mapping[str, str],
    metric: str,
) -> RunResult:
    """Return the summary of a search, without the reference network.

    Args:
        folder: Folder of the run.
        goal: Goal of the search.
        result: All trials.
        bundles: Bundles of the finalists, by id.
        names: Ids of networks, by the name of the pick, such as ``"knee"``.
        metric: Name of the metric whose test score is shown.
    """
    out = folder.output(goal.target)
    front = list(result.front)
    listed = {trial.candidate.id for trial in front}
    front += [
        t for t in result.trials if t.candidate.id in bundles and t.candidate.id not in listed
    ]
    report = out / "report.html"
    checks = checks_of(out, goal, bundles)
    units = units_of(bundles)
    return RunResult(
        run=folder.path,
        output=out,
        metric=metric,
        objectives=goal.objectives,
        trials=len(result.trials),
        front=tuple(
            front_row(folder.path, goal, t, names, bundles.get(t.candidate.id), metric, units)
            for t in front
        ),
        report=report if report.exists() else None,
    ).with_limits(checks)


def checks_of(
    out: Path, goal: SearchGoal, bundles: Mapping[str, Bundle]
) -> dict[str, tuple[LimitCheck, ...]]:
    """Return the limit checks of all candidates that were made into finalists, by id.

    Args:
        out: Folder of the results of the goal.
        goal: Goal that has the limits.
        bundles: Bundles of the finalists, by id.
    """
    tried = {each.id: recheck(each.limits, goal.objectives) for each in read_tried(out)}
    return tried | {name: of_bundle(bundle, goal.objectives) for name, bundle in bundles.items()}


def breaking(out: Path, goal: SearchGoal, bundles: Mapping[str, Bundle]) -> set[str]:
    """Return the ids of the candidates that do not meet the limits; arguments as in `checks_of`."""
    checks = checks_of(out, goal, bundles)
    return {name for name, found in checks.items() if overall(found) != "kept"}


def units_of(bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Return the units of the task's metrics by name, as far as the bundles state them."""
    rows = [row for b in bundles.values() for row in b.description["metrics"]]
    return {row["name"]: row["unit"] for row in rows if "unit" in row}


def front_row(
    run: Path,
    goal: SearchGoal,
    trial: Scored,
    names: Mapping[str, str],
    bundle: Bundle | None,
    metric: str,
    units: Mapping[str, str],
) -> FrontRow:
    """Return the row of one network; arguments as in `summary_of`."""
    latencies = [trial.values[o.label] for o in goal.objectives if o.metric == LATENCY]
    measurements = bundle.measurements if bundle else ()
    costs = {(m, t): label_on(m, t) for m, t in goal.costs if label_on(m, t) in trial.estimates}
    predicted = {label: trial.estimates[label].mean for label in costs.values()}
    tested = {} if bundle is None else score_of(bundle, metric, "test")
    return FrontRow(
        id=trial.candidate.id,
        picks=tuple(name for name, picked in names.items() if picked == trial.candidate.id),
        values=trial.values,
        standard_errors=trial.standard_errors,
        test=tested.get("value"),
        predicted_latency_ms=latencies[0] if latencies else None,
        measured_latency_ms=latency_of(bundle, goal.objectives) if bundle else None,
        predicted_ms={t: predicted[label] for (m, t), label in costs.items() if m == LATENCY},
        measured_ms={m.target: m.latency_ms for m in measurements},
        predicted=predicted,
        measured={label: cost.value for label, cost in costs_of(bundle).items()} if bundle else {},
        macs=trial.counted["macs"],
        params=trial.counted["params"],
        weight_bytes=trial.counted["weight_bytes"],
        bundle=None if bundle is None else str(bundle.folder.relative_to(run)),
        architecture=trial.candidate.as_dict(),
        intervals=_intervals(trial, units),
        test_of_seeds=tuple(tested.get("of_seeds", ())),
        target=_target(goal, trial, bundle),
        file_bytes=None if bundle is None else delivered_bytes(bundle, goal.objectives),
    )


def _target(goal: SearchGoal, trial: Scored, bundle: Bundle | None) -> str | None:
    """Return the target that a network ships for, if an objective chooses among several."""
    if not goal.chooses_target:
        return None
    measured = None if bundle is None else chosen_target(bundle, goal.objectives)
    return measured or goal.target_of(trial)


def _intervals(trial: Scored, units: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the ends of the confidence intervals of a trial's scores."""
    found = {}
    for name, error in trial.standard_errors.items():
        proportion = is_proportion(units.get(name), name)
        interval = metric_interval(trial.values[name], error, trial.images, proportion=proportion)
        found[name] = (interval.low, interval.high)
    return found


def write_front(summary: RunResult, path: Path) -> None:
    """Write the front as a CSV table; numbers have full precision, missing values are empty.

    If there are several targets, each has its own columns.
    """
    lines = [cells(row, summary) for row in summary.front]
    choices = sorted({name for row in summary.front for name in row.architecture})
    text = io.StringIO()
    writer = csv.writer(text)
    if lines:
        writer.writerow([*lines[0], *choices])
    for row, line in zip(summary.front, lines, strict=True):
        writer.writerow([*line.values(), *(row.architecture.get(name) for name in choices)])
    write_text(path, text.getvalue())


def cells(row: FrontRow, summary: RunResult) -> dict[str, Any]:
    """Return the cells of a row of the table by column, except the choices of the architecture."""
    cells: dict[str, Any] = {"id": row.id, "picks": " ".join(row.picks)}
    cells |= {o.label: row.values[o.label] for o in summary.objectives}
    if row.target is not None:
        cells["target"] = row.target
    labels = dict.fromkeys(label for each in summary.front for label in each.predicted)
    cells |= {label: row.predicted.get(label) for label in labels}
    cells[f"test_{summary.metric}"] = row.test
    if any(each.test_of_seeds for each in summary.front):
        for name, end in (("lowest", min), ("highest", max)):
            found = end(row.test_of_seeds, default=None)
            cells[f"{name}_test_{summary.metric}"] = found
    cells["measured_latency_ms"] = row.measured_latency_ms
    latencies = [label for label in labels if label.startswith(f"{LATENCY}@")]
    cells |= {
        f"measured_{label}": row.measured.get(label)
        for label in labels
        if [label] != latencies  # which has the column measured_latency_ms
    }
    if any(objective.limit is not None for objective in summary.objectives):
        cells["limits"] = row.limit_state
    cells |= {count: getattr(row, count) for count in _COUNTS}
    return cells | {"file_bytes": row.file_bytes, "bundle": row.bundle}
