"""Spaces whose networks have an early exit, at which easy images leave."""

from hwnas.search_spaces.early_exit.network import EarlyExitNetwork, ExitHead
from hwnas.search_spaces.early_exit.settings import EarlyExitConfig
from hwnas.search_spaces.early_exit.space import EarlyExitSpace
from hwnas.search_spaces.early_exit.workload import EarlyExitWorkload

__all__ = [
    "EarlyExitConfig",
    "EarlyExitNetwork",
    "EarlyExitSpace",
    "EarlyExitWorkload",
    "ExitHead",
]
