"""Stages of a run: calibrate, train, search, finalists, report."""

from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.run_inputs import RunInputs

__all__ = ["Job", "RunInputs", "SearchGoal"]
