"""Architecture search: tasks, supernet training, evaluators, samplers, studies, the search loop."""

from hwnas.search.data import DataConfig, ImageData, Split, data_manifest, load_data
from hwnas.search.data_manifest import DataManifest, manifest_difference
from hwnas.search.engine import run_search
from hwnas.search.evaluate import (
    Evaluation,
    Evaluator,
    Fidelity,
    SupernetEvaluator,
    TrainEvaluator,
)
from hwnas.search.evaluators import EVALUATORS
from hwnas.search.evolution import Box, EvolutionResult, evolve
from hwnas.search.executor import Executor, InProcess, RayActors
from hwnas.search.failure import Failure
from hwnas.search.lineage import GrowEvaluator
from hwnas.search.objective import Objective
from hwnas.search.ranking import RankingCheck
from hwnas.search.result import Scored, SearchResult
from hwnas.search.rungs import Rungs
from hwnas.search.samplers import SAMPLERS
from hwnas.search.scores import ScoreStore
from hwnas.search.segmentation import Segmentation, segmentation
from hwnas.search.shared_study import Sharing
from hwnas.search.study import SearchStudy
from hwnas.search.task import Classification, Metric, Task, classification
from hwnas.search.tasks import TASKS
from hwnas.search.training import SupernetTraining, TrainConfig, train_supernet

__all__ = [
    "EVALUATORS",
    "SAMPLERS",
    "TASKS",
    "Box",
    "Classification",
    "DataConfig",
    "DataManifest",
    "Evaluation",
    "Evaluator",
    "EvolutionResult",
    "Executor",
    "Failure",
    "Fidelity",
    "GrowEvaluator",
    "ImageData",
    "InProcess",
    "Metric",
    "Objective",
    "RankingCheck",
    "RayActors",
    "Rungs",
    "ScoreStore",
    "Scored",
    "SearchResult",
    "SearchStudy",
    "Segmentation",
    "Sharing",
    "Split",
    "SupernetEvaluator",
    "SupernetTraining",
    "Task",
    "TrainConfig",
    "TrainEvaluator",
    "classification",
    "data_manifest",
    "evolve",
    "load_data",
    "manifest_difference",
    "run_search",
    "segmentation",
    "train_supernet",
]
