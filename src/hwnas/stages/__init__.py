"""Stages of a run: calibrate, train, search, finalists, report."""

from hwnas.stages.job import Job, RunInputs, SearchGoal

__all__ = ["Job", "RunInputs", "SearchGoal"]
