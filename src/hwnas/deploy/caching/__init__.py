"""Cache of the answers of a network or a cascade to images that it has seen before."""

from hwnas.deploy.caching.near import NearRule, fit_near, signatures
from hwnas.deploy.caching.prediction_cache import CacheCounts, PredictionCache

__all__ = ["CacheCounts", "NearRule", "PredictionCache", "fit_near", "signatures"]
