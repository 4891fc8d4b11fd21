"""Report and exit status of an experiment that looks for wrong answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from experiments.record import Provenance
from hwnas.atomic import write_json

__all__ = ["end_with"]


def end_with(found: Mapping[str, Any], config: str, out: Path | None) -> NoReturn:
    """Print a report, save it if wanted, and exit with status 1 if anything is wrong.

    Args:
        found: Findings; the wrong ones are under ``"wrong"``.
        config: Description of the settings.
        out: File for the report, or None.
    """
    report = {**found, "provenance": asdict(Provenance.now(config))}
    print(json.dumps(report, indent=2))
    if out is not None:
        write_json(out, report)
    sys.exit(1 if found["wrong"] else 0)
