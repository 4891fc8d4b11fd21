"""Runs from start to end: launch, resumption, further targets, reports and exports."""

from hwnas.experiment.finished import cascade, export, rewrite_reports, space_of, status
from hwnas.experiment.running import Experiment, resume, run, specialise

__all__ = [
    "Experiment",
    "cascade",
    "export",
    "resume",
    "rewrite_reports",
    "run",
    "space_of",
    "specialise",
    "status",
]
