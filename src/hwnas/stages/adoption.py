"""Runs of a hwnas that recorded one hash of all inputs of a stage, brought up to named inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hwnas.search.data import ImageData
from hwnas.stages.finalists import read_bundles
from hwnas.stages.job import Goal, Job
from hwnas.stages.plan import stages_of

__all__ = ["adopt"]


def adopt(job: Job, goals: Sequence[Goal]) -> None:
    """Name the inputs of the stages that an older hwnas has finished.

    That hwnas refused another recipe, so settings are those of now. Images are compared by its own
    fingerprint, which the bundles of a run hold; where they differ, what was learned from them is
    left as it is and will be done anew. What was measured belongs to the processor that measured
    it, so on another one it is stale, and all else stays.

    Args:
        job: A run before anything is changed in it.
        goals: All goals of the run.
    """
    same_images = _has_same_images(job)
    if not same_images:
        job.reporter.note(
            f"{job.folder.path} was made from other images than there are now; what was learned "
            "from them is done anew"
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
    """Whether the bundles of a run were made from today's images, as far as they say."""
    bundles = read_bundles(job.folder.path / "bundles").values()
    recorded = {b.description["provenance"]["data"]["fingerprint"] for b in bundles}
    return not recorded or recorded == {_sampled_fingerprint(job.ingredients.data)}


def _sampled_fingerprint(data: ImageData) -> str:
    """What identified images up to schema 1 of runs: all targets and positions, some images."""
    content = hashlib.sha256(repr(data.class_names).encode())
    for split in (data.train, data.validation, data.test):
        images, masks = split.sample()
        targets = masks if split.kind == "masks" else split.targets
        for array in (images, targets, split.positions):
            content.update(repr(array.shape).encode() + array.tobytes())
    return content.hexdigest()[:12]
