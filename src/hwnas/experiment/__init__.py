"""Runs from start to end: launch, resumption, further targets, reports and exports."""

from hwnas.experiment.finished import (
    cascade,
    export,
    front_figure,
    picked_network,
    rewrite_reports,
    space_of,
    status,
    summaries,
)
from hwnas.experiment.running import Experiment, resume, run, specialise

__all__ = [
    "Experiment",
    "cascade",
    "export",
    "front_figure",
    "picked_network",
    "resume",
    "rewrite_reports",
    "run",
    "space_of",
    "specialise",
    "status",
    "summaries",
]
