"""Detection of changes in the images that a run was made from."""

from __future__ import annotations

from hwnas.search.data.manifest import DataManifest, manifest_difference
from hwnas.stages.job import Job

__all__ = ["MANIFEST", "tell_changed_images"]

_NAMED = 5

MANIFEST = "data_manifest.json.gz"
"""Name of the file in a run's folder that lists the files or arrays it was last worked on with."""


def tell_changed_images(job: Job) -> None:
    """Report images that changed since the run was last worked on, and store the current manifest.

    Damaged images that were left out are also reported.
    """
    if skipped := job.run_inputs.data.skipped:
        more = f" and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
        what = "damaged image is" if len(skipped) == 1 else "damaged images are"
        names = ", ".join(skipped[:_NAMED]) + more
        job.reporter.note(f"data: {len(skipped):,} {what} left out: {names}")
    path = job.folder.path / MANIFEST
    now = job.run_inputs.data.manifest
    if path.exists():
        before = DataManifest.read(path)
        if difference := manifest_difference(before, now):
            job.reporter.note(f"data: {difference}")
        else:
            return
    now.write(path)
