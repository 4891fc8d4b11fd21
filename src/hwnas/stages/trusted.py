"""A run whose results are those of today's inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hwnas.errors import RunError
from hwnas.plugin import imports_from
from hwnas.run_folder import RunFolder
from hwnas.stages.adoption import adopt
from hwnas.stages.job import Job, goals_of
from hwnas.stages.staleness import stale_stages, told_stale

__all__ = ["trusted_job"]


@contextlib.contextmanager
def trusted_job(opened: RunFolder) -> Iterator[Job]:
    """Open a run to make something of its results; only its reports may be stale.

    Results that were measured on another processor are used, and the user is told: bundles say
    where they were measured.

    Raises:
        RunError: What was learned or measured belongs to other inputs than those of now.
    """
    with imports_from(opened.recipe_folder), opened:
        job = Job.of(opened)
        if opened.unnamed:
            adopt(job, goals_of(opened))
        others = {name: ("made from other images",) for name in opened.unnamed}
        anywhere = stale_stages(opened, anywhere=True)
        stale = {
            name: reasons
            for name, reasons in (anywhere | others).items()
            if not name.startswith("report")
        }
        if stale:
            raise RunError(
                f"{told_stale(opened, stale)}; the bundles that are there stay until then"
            )
        if (here := stale_stages(opened)) != anywhere:
            job.reporter.note(told_stale(opened, here))
        yield job
