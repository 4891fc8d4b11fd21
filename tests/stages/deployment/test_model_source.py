"""Opening a network that a user names by its path."""

import shutil
from pathlib import Path

from hwnas.stages.deployment.model_source import opened

BUNDLE = Path(__file__).parents[2] / "old_runs/schema_1/run/bundles/2c38d0692970"


def test_opened_reads_a_bundle_whose_replacement_was_interrupted(tmp_path: Path) -> None:
    shutil.copytree(BUNDLE, tmp_path / ".bundle.new")
    with opened(tmp_path / "bundle") as found:
        assert found.bundle is not None
        assert found.bundle.description["id"] == BUNDLE.name
