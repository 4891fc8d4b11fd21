"""Files that name the version agree."""

import re
from pathlib import Path

from hwnas import __version__

ROOT = Path(__file__).parents[1]


def test_citation_names_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {__version__}\n" in text


def test_changelog_begins_with_changes_that_are_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings.count("Unreleased") == 1
