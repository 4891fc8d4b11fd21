"""Residual networks of bottlenecks, up to ResNet-50."""

from hwnas.search_spaces.resnet.config import ResNetConfig, ResNetStage
from hwnas.search_spaces.resnet.presets import PRESETS
from hwnas.search_spaces.resnet.space import ResNetSpace, resnet

__all__ = ["PRESETS", "ResNetConfig", "ResNetSpace", "ResNetStage", "resnet"]
