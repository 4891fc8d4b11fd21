"""HTML report of a finished search, rendered from plain data into one file."""

from hwnas.report.data import (
    BlockPicture,
    CalibrationRow,
    Finalist,
    Hypervolume,
    ObjectiveInfo,
    ReportData,
    Score,
    StagePicture,
    StageTime,
    TargetLatency,
    TrainingCurveRow,
    TrialRow,
)
from hwnas.report.page import render, write_report

__all__ = [
    "BlockPicture",
    "CalibrationRow",
    "Finalist",
    "Hypervolume",
    "ObjectiveInfo",
    "ReportData",
    "Score",
    "StagePicture",
    "StageTime",
    "TargetLatency",
    "TrainingCurveRow",
    "TrialRow",
    "render",
    "write_report",
]
