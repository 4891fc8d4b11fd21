"""HTML report of a finished search, rendered from plain data into one file."""

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
