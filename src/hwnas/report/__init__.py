"""The report: one HTML file about a finished search, from plain data."""

from hwnas.report.data import (
    BlockPicture,
    CalibrationRow,
    Finalist,
    Hypervolume,
    ObjectiveInfo,
    OnTarget,
    ReportData,
    Score,
    StagePicture,
    StageTime,
    TrainingRow,
    TrialRow,
)
from hwnas.report.page import render, write_report

__all__ = [
    "BlockPicture",
    "CalibrationRow",
    "Finalist",
    "Hypervolume",
    "ObjectiveInfo",
    "OnTarget",
    "ReportData",
    "Score",
    "StagePicture",
    "StageTime",
    "TrainingRow",
    "TrialRow",
    "render",
    "write_report",
]
