"""Stages that train the supernet, and that check its ranking of networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from torch import Tensor

from hwnas.predictors import CostSource
from hwnas.progress import ProgressCallback
from hwnas.search import RankingCheck
from hwnas.search.engine.devices import device_here, on_device
from hwnas.search.evaluation.evaluate import weights_hash
from hwnas.search.training import (
    SupernetTraining,
    TrainingPoint,
    restamp_checkpoint,
    train_supernet,
)
from hwnas.search.training.checkpoint import checkpoint_run
from hwnas.search.training.supernet import CHECKPOINT, ROWS, WEIGHTS
from hwnas.stages.calibrate import check_limits
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage

__all__ = ["ranking", "training"]


def training(job: Job, goal: SearchGoal, costs: Mapping[str, CostSource]) -> RunStage:
    """Return the stage that trains the supernet, or continues its training."""
    folder = job.folder.path / "supernet"
    checkpoint = folder / CHECKPOINT

    def work(advance: ProgressCallback) -> None:
        def on_row(row: TrainingPoint) -> None:
            advance(row.share, f"epoch {row.epoch:.1f}, loss {row.loss:.3f}")
            if row.note:
                job.reporter.note(row.note)

        check_limits(job, goal, costs)
        if checkpoint.exists() and checkpoint_run(checkpoint) != job.continued_training.key:
            checkpoint.unlink()
            (folder / ROWS).unlink(missing_ok=True)
        train_supernet(_training(job), on_row)

    def adopt() -> None:
        if checkpoint.exists():
            restamp_checkpoint(checkpoint, job.continued_training.key, job.recipe.train)

    return RunStage("train", job.training, work, (folder / WEIGHTS).exists, adopt)


def ranking(job: Job, weights: Mapping[str, Tensor]) -> RunStage:
    """Return the stage that compares the supernet's ranking of networks with separate training."""
    folder = job.folder.path / "supernet"

    def work(advance: ProgressCallback) -> None:
        with on_device(device_here(job.recipe.train.gpus_per_worker)):
            ranked = RankingCheck.of(_training(job))(weights)
        job.reporter.note(ranked.summary, ranking=asdict(ranked))

    identity = job.identity("ranking", training=job.training.key, weights=weights_hash(weights))
    return RunStage("ranking", identity, work, (folder / "ranking.json").exists)


def _training(job: Job) -> SupernetTraining:
    recipe, i = job.recipe, job.run_inputs
    folder, key = job.folder.path / "supernet", job.continued_training.key
    return SupernetTraining(
        i.space, i.task, i.data, recipe.train.of_supernet, recipe.seed, key, folder, i.start
    )
