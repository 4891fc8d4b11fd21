"""Space of MobileNetV3-like networks (once-for-all, FBNet, ProxylessNAS)."""

from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.search_spaces.mobilenet.space import MobileNetSpace, mobilenet

__all__ = ["PRESETS", "MobileNetConfig", "MobileNetSpace", "Stage", "mobilenet"]
