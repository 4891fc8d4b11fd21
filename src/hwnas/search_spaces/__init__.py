"""Search spaces, their architectures and supernets, and the workload of each network."""

from hwnas.search_spaces.any_model import ElasticSpace, elastic
from hwnas.search_spaces.cells import CellSpace, nasbench201
from hwnas.search_spaces.channel_config import ChannelConfig
from hwnas.search_spaces.cost_model.operator_counts import (
    Assembly,
    OperatorCountTable,
    OperatorSignature,
    PartTable,
)
from hwnas.search_spaces.cost_model.workload import (
    NetworkOperator,
    OperatorKind,
    TensorSpec,
    Workload,
    trace,
)
from hwnas.search_spaces.decoder import DecoderConfig, DecoderSpace, decoder
from hwnas.search_spaces.dense_head import DenseHead
from hwnas.search_spaces.edsr import EdsrConfig, EdsrSpace, edsr
from hwnas.search_spaces.experts import ExpertsConfig, ExpertsSpace, experts
from hwnas.search_spaces.hiera import HieraConfig, HieraSpace, hiera
from hwnas.search_spaces.hybrid import HybridConfig, HybridSpace, HybridStage, hybrid
from hwnas.search_spaces.mobilenet import MobileNetConfig, MobileNetSpace, Stage, mobilenet
from hwnas.search_spaces.registry import ROLES, SPACES
from hwnas.search_spaces.resnet import ResNetConfig, ResNetSpace, ResNetStage, resnet
from hwnas.search_spaces.simplenet import Group, SimpleNetConfig, SimpleNetSpace, simplenet
from hwnas.search_spaces.space.architecture import Architecture, Candidate
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition, Option
from hwnas.search_spaces.space.product import ProductSpace
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.training_space import TrainingSpace, recipe_space
from hwnas.search_spaces.space.union import UnionSpace
from hwnas.search_spaces.supernet.channels import ChannelSpace, channels
from hwnas.search_spaces.supernet.supernet import Supernet, batch_norms, with_statistics
from hwnas.search_spaces.unions import union
from hwnas.search_spaces.vit import VitConfig, VitSpace, vit

__all__ = [
    "ROLES",
    "SPACES",
    "Architecture",
    "Assembly",
    "Candidate",
    "CellSpace",
    "ChannelConfig",
    "ChannelSpace",
    "Choice",
    "ChoiceCondition",
    "ChoiceSpace",
    "DecoderConfig",
    "DecoderSpace",
    "DenseHead",
    "EdsrConfig",
    "EdsrSpace",
    "ElasticSpace",
    "ExpertsConfig",
    "ExpertsSpace",
    "Group",
    "HieraConfig",
    "HieraSpace",
    "HybridConfig",
    "HybridSpace",
    "HybridStage",
    "MobileNetConfig",
    "MobileNetSpace",
    "NetworkOperator",
    "OperatorCountTable",
    "OperatorKind",
    "OperatorSignature",
    "Option",
    "PartTable",
    "ProductSpace",
    "ResNetConfig",
    "ResNetSpace",
    "ResNetStage",
    "SearchSpace",
    "SimpleNetConfig",
    "SimpleNetSpace",
    "Stage",
    "Supernet",
    "TensorSpec",
    "TrainingSpace",
    "UnionSpace",
    "VitConfig",
    "VitSpace",
    "Workload",
    "batch_norms",
    "channels",
    "decoder",
    "edsr",
    "elastic",
    "experts",
    "hiera",
    "hybrid",
    "mobilenet",
    "nasbench201",
    "recipe_space",
    "resnet",
    "simplenet",
    "trace",
    "union",
    "vit",
    "with_statistics",
]
