"""Run whose results belong to the current inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from hwnas.errors import RunError
from hwnas.plugin import imports_from
from hwnas.recipe.keys import parts_of
from hwnas.run_folder import RunFolder
from hwnas.stages.goal import goals_of
from hwnas.stages.job import START, Job
from hwnas.stages.older_runs import adopt
from hwnas.stages.staleness import stale_stages, told_stale

__all__ = ["trusted_job"]


@contextlib.contextmanager
def trusted_job(opened: RunFolder) -> Iterator[Job]:
    """Open a run to use its results; only its reports may be stale.

    Results that were measured on another processor are used, and the user is told; bundles record
    where they were measured.

    Raises:
        RunError: Results were learned or measured with other inputs than the current ones.
    """
    with imports_from(opened.recipe_folder), opened:
        job = Job.of(opened)
        if opened.unnamed:
            adopt(job, goals_of(opened))
        others = {name: ("made from other images",) for name in opened.unnamed}
        anywhere = stale_stages(opened, anywhere=True, edits=False)
        stale = {
            name: reasons
            for name, reasons in (_learned_otherwise(job) | anywhere | others).items()
            if parts_of(name)[0] != "report" or not _has_finalists(opened, name)
        }
        if stale:
            raise RunError(f"{told_stale(opened, stale)}; the existing bundles stay until then")
        if (here := stale_stages(opened)) != anywhere:
            job.reporter.note(told_stale(opened, here))
        yield job


def _has_finalists(opened: RunFolder, report: str) -> bool:
    """Return whether the finalists that a report shows are done."""
    record = opened.stages.get(report.replace("report", "finalists", 1))
    return record is not None and record.state == "done"


def _learned_otherwise(job: Job) -> dict[str, tuple[str, ...]]:
    """Return the stages made with another space, task, images or first weights, with the reasons.

    `stale_stages` does not detect all of these: an image may be unchanged while its part in the
    training has changed.
    """
    found = {}
    for name, record in job.folder.stages.items():
        stored = record.identity
        if stored is None or record.state != "done":
            continue
        now: Mapping[str, str] = job.learned
        if parts_of(name)[0] == "calibrate":
            now = {"space": job.run_inputs.space.fingerprint}
        changed = [k for k, value in now.items() if stored.inputs.get(k, value) != value]
        if name == "train" and job.start.get(START) != stored.inputs.get(START):
            changed.append(START)
        if changed:
            found[name] = tuple(f"{what} changed" for what in changed)
    return found
