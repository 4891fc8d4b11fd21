"""Upgrade of runs of an older hwnas, which recorded one hash of all inputs, to named inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hwnas.search.data.image_data import ImageData
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.order import stages_of

__all__ = ["adopt"]


def adopt(job: Job, goals: Sequence[SearchGoal]) -> None:
    """Record by name the inputs of the stages that an older hwnas has finished.

    The older hwnas refused a changed recipe, so the current settings are those of the stages.
    Images are compared by the older fingerprint, which the bundles of a run hold. If the images
    differ, stages that learned from them are not changed and will be redone. Measurements belong to
    the processor that made them: on another processor they are stale, and all other results are
    kept.

    Args:
        job: Run, before anything is changed in it.
        goals: All goals of the run.
    """
    same_images = _has_same_images(job)
    if not same_images:
        job.reporter.note(
            f"{job.folder.path} was made from other images than the current ones; everything that "
            "was learned from them is done again"
        )
    for goal in goals:
        for stage in stages_of(job, goal):
            record = job.folder.stages.get(stage.name)
            if record is None or not (same_images or stage.name.startswith("calibrate")):
                break
            found = stage.adopt() if record.identity is None else None
            if record.state != "done" or not stage.made():
                break
            if record.identity is None:
                job.folder.adopt(stage.name, found or stage.identity)


def _has_same_images(job: Job) -> bool:
    """Return whether the bundles of a run, if any, were made from the current images."""
    bundles = read_bundles(job.folder.path / "bundles").values()
    recorded = {b.description["provenance"]["data"]["fingerprint"] for b in bundles}
    return not recorded or recorded == {_sampled_fingerprint(job.run_inputs.data)}


def _sampled_fingerprint(data: ImageData) -> str:
    """Return the fingerprint of schema 1 of runs: of all targets and positions and some images."""
    content = hashlib.sha256(repr(data.class_names).encode())
    for split in (data.train, data.validation, data.test):
        images, masks = split.sample()
        targets = masks if split.kind == "masks" else split.targets
        for array in (images, targets, split.positions):
            content.update(repr(array.shape).encode() + array.tobytes())
    return content.hexdigest()[:12]
