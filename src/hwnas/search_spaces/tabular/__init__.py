"""Spaces of published tables, whose networks are rows of integers, for thousands at a time."""

from hwnas.search_spaces.tabular.categorical import CategoricalSpace
from hwnas.search_spaces.tabular.fbnet import FBNetSpace
from hwnas.search_spaces.tabular.hwgpt import HwGptSpace
from hwnas.search_spaces.tabular.nasbench201 import NasBench201Space
from hwnas.search_spaces.tabular.ofa_mobilenet import OFAMobileNetSpace
from hwnas.search_spaces.tabular.recognise import TABULAR_SPACES, tabular_space
from hwnas.search_spaces.tabular.table import Arrays, Codes, TabularSpace

__all__ = [
    "TABULAR_SPACES",
    "Arrays",
    "CategoricalSpace",
    "Codes",
    "FBNetSpace",
    "HwGptSpace",
    "NasBench201Space",
    "OFAMobileNetSpace",
    "TabularSpace",
    "tabular_space",
]
