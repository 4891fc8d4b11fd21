"""Architecture search: tasks, supernet training, evaluators, samplers, studies, the search loop."""

from hwnas.search.data.image_data import DataConfig, ImageData, Split
from hwnas.search.data.loading import data_manifest, load_data
from hwnas.search.data.manifest import DataManifest, manifest_difference
from hwnas.search.engine.executor import Executor, InProcess, RayActors
from hwnas.search.engine.failure import Failure
from hwnas.search.engine.loop import run_search
from hwnas.search.engine.options import SearchCallbacks, SearchOptions, StudyStorage
from hwnas.search.engine.result import Scored, SearchResult
from hwnas.search.engine.rungs import Rungs
from hwnas.search.evaluation.evaluate import Evaluator, SupernetEvaluator, TrainEvaluator
from hwnas.search.evaluation.lineage import GrowEvaluator
from hwnas.search.evaluation.ranking import RankingCheck
from hwnas.search.evaluation.registry import EVALUATORS
from hwnas.search.evaluation.scores import ScoreStore
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search.evolution import Box, EvolutionResult, evolve
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers import SAMPLERS
from hwnas.search.study.search_study import SearchStudy
from hwnas.search.study.shared_study import Sharing
from hwnas.search.tasks.classification import Classification, classification
from hwnas.search.tasks.registry import TASKS
from hwnas.search.tasks.segmentation import Segmentation, segmentation
from hwnas.search.tasks.task import Metric, Task
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
    "SearchCallbacks",
    "SearchOptions",
    "SearchResult",
    "SearchStudy",
    "Segmentation",
    "Sharing",
    "Split",
    "StudyStorage",
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
