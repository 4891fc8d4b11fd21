"""Training of supernets, in one process or on Ray Train, and of single networks."""

from hwnas.search.training.batch import Batch, Mixed
from hwnas.search.training.checkpoint import (
    load_weights,
    restamp_checkpoint,
    save_weights,
    weights_identity,
)
from hwnas.search.training.config import CONTINUABLE, NO_EFFECT
from hwnas.search.training.steps import StepContext, Teacher
from hwnas.search.training.supernet import (
    SupernetTraining,
    read_rows,
    teacher_of,
    train_supernet,
)
from hwnas.search.training.trainer import (
    NetworkStep,
    SupernetStep,
    TrainConfig,
    TrainingPoint,
    fit,
)

__all__ = [
    "CONTINUABLE",
    "NO_EFFECT",
    "Batch",
    "Mixed",
    "NetworkStep",
    "StepContext",
    "SupernetStep",
    "SupernetTraining",
    "Teacher",
    "TrainConfig",
    "TrainingPoint",
    "fit",
    "load_weights",
    "read_rows",
    "restamp_checkpoint",
    "save_weights",
    "teacher_of",
    "train_supernet",
    "weights_identity",
]
