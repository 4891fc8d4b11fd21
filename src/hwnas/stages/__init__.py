"""Stages of a run: calibrate, train, search, finalists, report."""

from hwnas.stages.job import Goal, Ingredients, Job

__all__ = ["Goal", "Ingredients", "Job"]
