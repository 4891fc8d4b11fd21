"""The images that a run was made from, told apart from those of now."""

from __future__ import annotations

from hwnas.search.data_manifest import DataManifest, manifest_difference
from hwnas.stages.job import Job

__all__ = ["MANIFEST", "tell_changed_images"]

MANIFEST = "data_manifest.json.gz"
"""In a run's folder: the files or arrays that it was last worked on with."""


def tell_changed_images(job: Job) -> None:
    """Say which images have changed since the run was last worked on; keep what there is now."""
    path = job.folder.path / MANIFEST
    now = job.ingredients.data.manifest
    if path.exists():
        before = DataManifest.read(path)
        if difference := manifest_difference(before, now):
            job.reporter.note(f"data: {difference}")
        else:
            return
    now.write(path)
