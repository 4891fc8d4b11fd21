"""Report of a run: collection of its contents from the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf

import numpy as np
from PIL import Image

from hwnas import report
from hwnas.atomic import replacing, write_text
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.target import Target
from hwnas.predictors import Estimate
from hwnas.predictors.expected_cost import expected_costs
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS, DeviceMetric, Profile
from hwnas.report import (
    BlockPicture,
    CalibrationRow,
    Finalist,
    Hypervolume,
    ObjectiveInfo,
    ReportData,
    Score,
    StagePicture,
    StageTime,
    TargetLatency,
    TrainingCurveRow,
    TrialRow,
)
from hwnas.report.data import Role
from hwnas.search import Objective, Scored, SearchResult
from hwnas.search.objectives.front import hypervolume_history, reference_point
from hwnas.search.objectives.objective import LATENCY, kind_of, label_on, losses, unit_of
from hwnas.search.strategies.learning import LearnedDistribution, read_distributions
from hwnas.search.training import read_rows
from hwnas.search.training.sampling import networks_a_step
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.stages.calibrate import calibrated
from hwnas.stages.finalists.bundles import (
    chosen_target,
    delivered_bytes,
    measured_cost,
    picks,
    read_bundles,
    score_of,
)
from hwnas.stages.finalists.limits import costs_of, limit_messages, of_bundle, overall
from hwnas.stages.finalists.packing import PATH_MACS
from hwnas.stages.finalists.reference import REFERENCE, reference_name, references_of
from hwnas.stages.finalists.shortlist import read_tried
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage
from hwnas.stages.measurements import MEASUREMENTS, Timed, read_measurements
from hwnas.stages.results.run_result import (
    RunResult,
    breaking,
    example_image,
    example_text,
    summarise,
    write_front,
)
from hwnas.stages.search import BASELINE, found

__all__ = ["gather", "reporting", "write_results"]


def reporting(job: Job, goal: SearchGoal, result: SearchResult) -> RunStage:
    """Return the stage that writes front and report.

    Args:
        job: Run that is being worked on.
        goal: Goal whose results are reported.
        result: All trials of the search.
    """
    out = job.folder.output(goal.target)
    finalists = job.folder.stages.get(goal.stage("finalists"))
    ranking = job.folder.stages.get("ranking") if job.recipe.train.ranking_check else None
    baseline = _baseline(job, goal)
    reference = job.folder.stages.get(REFERENCE) if job.recipe.deploy.reference else None
    compared = {
        **({} if reference is None else {"reference": reference.inputs}),
        **({} if ranking is None else {"ranking": ranking.inputs}),
        **({} if baseline is None else {"baseline": baseline}),
    }
    identity = job.identity(
        "report",
        trials=result,
        training=job.training.key,
        finalists=finalists.inputs if finalists is not None else {},
        measurements=read_measurements(out / MEASUREMENTS),
        **compared,
    )
    made = [out / "front.csv", out / "report.html"]
    return RunStage(
        goal.stage("report"),
        identity,
        lambda _: write_results(job, goal),
        lambda: all(path.exists() for path in made),
    )


def write_results(job: Job, goal: SearchGoal) -> None:
    """Write ``front.csv``, ``report.html`` and an example image for the bundles of a goal."""
    out = job.folder.output(goal.target)
    _write_example(job)
    summary = summarise(job, goal)
    write_front(summary, out / "front.csv")
    report.write_report(gather(job, goal, summary), out / "report.html")


def _write_example(job: Job) -> None:
    """Write a validation image as a PNG file, if it has 1 or 3 channels, or a window of text."""
    data = job.run_inputs.data
    [pixels], _ = data.validation.take([0])
    if data.kind == "tokens":
        text = pixels.tobytes().rstrip(b"\0").decode(errors="replace")
        write_text(example_text(job.folder.path), text)
    elif pixels.shape[-1] in (1, 3):
        with replacing(example_image(job.folder.path)) as temporary:
            Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(
                temporary, format="PNG"
            )


def gather(job: Job, goal: SearchGoal, summary: RunResult) -> ReportData:
    """Return the contents of the report of a goal."""
    folder = job.folder
    result = found(folder.path, goal)
    baseline = _baseline(job, goal)
    broken = breaking(folder.output(goal.target), goal, _bundles(job, goal))
    reference, curves = _hypervolumes(job, result, baseline, broken)
    out, space = folder.output(goal.target), job.run_inputs.space
    profiles = {cost: calibrated(space, *cost, out) for cost in goal.costs}
    return ReportData(
        name=folder.recipe.name,
        created=datetime.fromisoformat(folder.about["created"]).strftime("%d %B %Y, %H:%M UTC"),
        seed=folder.recipe.seed,
        target=", ".join(goal.targets),
        task=f"{job.run_inputs.task.name}, {job.run_inputs.task.outputs} outputs",
        space=" and ".join(folder.recipe.space.names),
        space_size=goal.space(job.run_inputs.searched).size(),
        objectives=tuple(_objective(job, o) for o in goal.objectives),
        trials=_trials(result, folder.recipe.search.sampler),
        baseline_trials=_trials(baseline, BASELINE) if baseline else (),
        finalists=_finalists(job, goal, result),
        references=_references(job, goal),
        verdict=summary.verdict,
        calibration=_calibration(job, goal, profiles),
        training=_training(job),
        learned=_learned(job, goal),
        stage_times=tuple(
            StageTime(name, r.wall_s, r.cpu_s, r.gpu_s, r.state)
            for name, r in folder.stages.items()
        ),
        hypervolume=curves,
        reference_point=reference,
        break_even=_break_even(job),
        warnings=_warnings(job, goal, result, [*profiles.values()]),
        versions=folder.about["versions"],
        hardware=folder.about["machine"],
        recipe_toml=(folder.path / "recipe.toml").read_text(encoding="utf-8"),
        next_commands=summary.next_commands,
    )


def _learned(job: Job, goal: SearchGoal) -> tuple[LearnedDistribution, ...]:
    """Return the distributions that the strategy of the recipe has learned, if it has one."""
    if job.run_inputs.strategy is None:
        return ()
    return tuple(read_distributions(job.strategy_folder(goal)))


def _baseline(job: Job, goal: SearchGoal) -> SearchResult | None:
    """Return the result of random search, if the recipe asks for it."""
    if not job.recipe.search.random_baseline or goal.target is not None:
        return None
    return found(job.folder.path, goal, BASELINE)


def _objective(job: Job, objective: Objective) -> ObjectiveInfo:
    units = {m.name: m.unit for m in job.run_inputs.task.metrics}
    return ObjectiveInfo(
        objective.label,
        objective.metric,
        objective.direction,
        units.get(objective.metric) or unit_of(objective.metric),
        kind_of(objective.metric),
        objective.limit,
        _where(objective),
    )


def _where(objective: Objective) -> str | None:
    """Return the target of an objective, or a description of several targets."""
    if objective.reduce is None:
        return objective.target
    how = {"worst": "the slowest", "sum": "the sum", "min": "the lowest"}[objective.reduce]
    return f"{how} of {', '.join(objective.targets)}"


def _trials(result: SearchResult, sampler: str) -> tuple[TrialRow, ...]:
    front = {trial.number for trial in result.front}
    return tuple(
        TrialRow(
            trial.number,
            trial.candidate.id,
            {o.label: trial.values[o.label] for o in result.objectives},
            trial.standard_errors,
            trial.candidate.as_dict(),
            trial.number in front,
            trial.feasible,
            sampler,
            trial.images,
        )
        for trial in result.trials
    )


def _bundles(job: Job, goal: SearchGoal) -> dict[str, Bundle]:
    return read_bundles(job.folder.output(goal.target) / "bundles")


def _finalists(job: Job, goal: SearchGoal, result: SearchResult) -> tuple[Finalist, ...]:
    bundles = _bundles(job, goal)
    trials = [t for t in result.trials if t.candidate.id in bundles]
    named = picks(bundles, job.run_inputs.task.metrics[0], goal.objectives)
    rows = [_finalist(job, goal, trial, bundles[trial.candidate.id], named) for trial in trials]
    return tuple(sorted(rows, key=lambda f: f.measurement.latency_ms if f.measurement else inf))


def _finalist(
    job: Job, goal: SearchGoal, trial: Scored, bundle: Bundle, named: Mapping[str, str]
) -> Finalist:
    return _delivered(
        job,
        goal,
        bundle,
        trial.candidate.id,
        trial.candidate.as_dict(),
        _stages(job.run_inputs.space, trial.candidate.network),
        {
            target: trial.estimates[label_on(LATENCY, target)]
            for metric, target in goal.costs
            if metric == LATENCY and label_on(metric, target) in trial.estimates
        },
        tuple(name for name, picked in named.items() if picked == trial.candidate.id),
    )


def _references(job: Job, goal: SearchGoal) -> tuple[Finalist, ...]:
    """Return the reference network and its conversions in the form of finalists."""
    return tuple(
        _delivered(
            job,
            goal,
            bundle,
            reference_name(job.run_inputs, bundle),
            bundle.architecture.as_dict(),
            (),
            {},
            (name,),
        )
        for name, bundle in references_of(job, goal).items()
    )


def _delivered(
    job: Job,
    goal: SearchGoal,
    bundle: Bundle,
    name: str,
    architecture: Mapping[str, int | float | str],
    stages: tuple[StagePicture, ...],
    predicted: Mapping[str, Estimate],
    picked: tuple[str, ...],
) -> Finalist:
    """Return a network with the values that its bundle states."""
    metric = job.run_inputs.task.metrics[0].name
    counted = {row["name"]: row["value"] for row in bundle.description["metrics"]}
    measured = {m.target: m for m in bundle.measurements}
    chosen = chosen_target(bundle, goal.objectives)
    targets = goal.targets if chosen is None else [chosen]
    first = targets[0] if targets else None
    expected = predicted.get(first) if first else None
    scores = {split: score_of(bundle, metric, split) for split in ("validation", "test")}
    validation, test = (
        Score(s["value"], s["standard_error"], s["n"], s["unit"], tuple(s.get("of_seeds", ())))
        for s in scores.values()
    )
    checks = of_bundle(bundle, goal.objectives)
    return Finalist(
        id=name,
        architecture=architecture,
        stages=stages,
        validation=validation,
        test=test,
        metric=metric,
        predicted_latency_ms=expected.mean if expected else None,
        predicted_std_ms=expected.std if expected else None,
        measurement=measured.get(first) if first else None,
        macs=counted["macs"],
        params=counted["params"],
        size_bytes=delivered_bytes(bundle, goal.objectives) or counted["weight_bytes"],
        max_relative_error=bundle.description["max_relative_error"],
        bundle=str(bundle.folder.relative_to(job.folder.output(goal.target))),
        picks=picked,
        further=tuple(
            TargetLatency(
                target,
                predicted[target].mean if target in predicted else None,
                predicted[target].std if target in predicted else None,
                measured[target],
            )
            for target in targets[1:]
        ),
        delivered={
            o.label: cost for o in goal.objectives if (cost := measured_cost(bundle, o)) is not None
        },
        missed_limits=tuple(limit_messages(checks)),
        limit_state=overall(checks) if checks else None,
        path_macs={
            name.removeprefix(PATH_MACS): value
            for name, value in counted.items()
            if name.startswith(PATH_MACS)
        },
    )


def _stages(space: SearchSpace, architecture: Architecture) -> tuple[StagePicture, ...]:
    return tuple(
        StagePicture(stage.channels, stage.stride, tuple(BlockPicture(*b) for b in stage.blocks))
        for stage in space.outline(architecture)
    )


def _calibration(
    job: Job, goal: SearchGoal, profiles: Mapping[tuple[str, str], Profile]
) -> tuple[CalibrationRow, ...]:
    """Return predicted beside measured costs, of the calibrations and of the finalists."""
    space, bundles = job.run_inputs.space, _bundles(job, goal)
    rows: list[CalibrationRow] = []
    for (metric, name), profile in profiles.items():
        how, target, label = DEVICE_METRICS[metric], Target.parse(name), label_on(metric, name)
        predictor = how.predictor(profile)
        known = zip(profile.networks, predictor.held_out(), how.costs_of(profile), strict=True)
        rows += [_interval(how, *each, "left out in turn") for each in known]
        for bundle in bundles.values():
            measured = costs_of(bundle).get(label)
            if measured is not None:
                workload = space.workload(bundle.architecture, how.batch(target))
                [estimate] = expected_costs(predictor, [workload], [target])
                architecture = bundle.architecture.id
                rows.append(_interval(how, architecture, estimate, measured.value, "finalist"))
    return tuple(rows)


def _interval(
    metric: DeviceMetric, network: str, estimate: Estimate, measured: float, role: Role
) -> CalibrationRow:
    ends = estimate.interval90
    return CalibrationRow(network, estimate.mean, *ends, measured, role, metric.noun, metric.unit)


def _training(job: Job) -> tuple[TrainingCurveRow, ...]:
    return tuple(
        TrainingCurveRow(r.step, r.epoch, r.seconds, r.loss, r.loss_smallest, r.learning_rate)
        for r in read_rows(job.folder.path / "supernet")
    )


def _hypervolumes(
    job: Job, result: SearchResult, baseline: SearchResult | None, broken: set[str]
) -> tuple[dict[str, float], tuple[Hypervolume, ...]]:
    """Return the reference point by label, and a hypervolume curve for each sampler.

    Only networks that meet the limits count, both by the values of the search and, once they were
    measured, by the measured values.
    """
    searches = [(job.recipe.search.sampler, result)]
    if baseline is not None:
        searches.append((BASELINE, baseline))
    tables = [losses(r.objectives, [t.values for t in r.trials]) for _, r in searches]
    masks = [[t.feasible and t.candidate.id not in broken for t in r.trials] for _, r in searches]
    counted = np.vstack([table[mask] for table, mask in zip(tables, masks, strict=True)])
    if len(counted) == 0:
        return {}, ()
    reference = reference_point(counted)
    curves = tuple(
        Hypervolume(
            sampler,
            tuple(range(1, len(table) + 1)),
            tuple(hypervolume_history(table, reference, mask)),
        )
        for (sampler, _), table, mask in zip(searches, tables, masks, strict=True)
    )
    values = zip(result.objectives, reference, strict=True)
    return {o.label: o.loss(float(value)) for o, value in values}, curves


def _break_even(job: Job) -> str:
    """Return a text: from how many targets on a supernet is cheaper than separate training."""
    stages, train, top = job.folder.stages, job.recipe.train, job.recipe.deploy.top
    if not job.needs_supernet:
        return "No supernet was trained: the recipe's evaluator trains every network alone."
    once = stages["train"].wall_s
    networks = networks_a_step(train.sampling, train.random_subnets)
    alone = top * once / networks
    each = sum(
        record.wall_s
        for name, record in stages.items()
        if name.startswith("calibrate") or name in ("strategy", "search", "finalists")
    )
    model = (
        f"Modelled: {top} networks trained alone, each for as many steps as the supernet's "
        f"{once:.0f} s at {networks} networks a step, would take {alone:.0f} s a target. "
        f"The supernet took {once:.0f} s once and {each:.0f} s a target"
    )
    if alone <= each:
        return f"{model}, so for a task of this size it is not cheaper for any number of targets."
    targets = int(np.floor(once / (alone - each))) + 1
    return f"{model}, so it is cheaper from {targets} target{'s' * (targets > 1)} on."


def _warnings(
    job: Job, goal: SearchGoal, result: SearchResult, profiles: Sequence[Profile]
) -> tuple[str, ...]:
    rows = read_measurements(job.folder.output(goal.target) / MEASUREMENTS)
    timed = [row for row in rows if row.role == "finalist"]
    fitted = [profile for profile in profiles if profile.reference_ms is not None]
    contended = sum(row.measurement.contended for row in timed)
    contended += sum(profile.contended for profile in fitted)
    warnings = []
    if contended:
        every = len(timed) + sum(len(profile.networks) for profile in fitted)
        warnings.append(
            f"{contended} of {every} timings were disturbed by other processes on the "
            "machine; their medians are less certain than the intervals show."
        )
    if result.failed:
        reasons = [failed.failure.reason for failed in result.failed]
        warnings.append(
            f"{len(reasons)} candidates could not be evaluated, most often because of: "
            f"{max(reasons, key=reasons.count)}"
        )
    return (*warnings, *_limits(job, goal), *_drift(fitted, timed))


def _limits(job: Job, goal: SearchGoal) -> list[str]:
    """Return warnings of limits that finalists do not keep, and of candidates replaced for them."""
    warnings = []
    for name, bundle in _bundles(job, goal).items():
        warnings += [
            f"Finalist {name}: {line}."
            for line in limit_messages(of_bundle(bundle, goal.objectives))
        ]
    dropped = [each for each in read_tried(job.folder.output(goal.target)) if not each.packed]
    for each in dropped:
        why = each.reason if each.state == "failed" else "; ".join(limit_messages(each.limits))
        if why:
            warnings.append(f"Another candidate took the place of {each.id}: {why}.")
    return warnings


def _drift(fitted: Sequence[Profile], timed: Sequence[Timed]) -> list[str]:
    """Return a warning if the machine's speed changed between calibration and the finalists."""
    before = [each.reference_ms for each in fitted if each.reference_ms is not None]
    after = [row.measurement.anchor_ms for row in timed]
    if not before or not after:
        return []
    ratio = float(np.median(after) / np.median(before))
    if abs(ratio - 1) < 0.05:
        return []
    return [
        f"The reference model took {ratio:.2f} times as long when the finalists were timed as when "
        "the predictor was fitted; the difference between predicted and measured latency includes "
        "this."
    ]
