"""Predicted costs of candidates, each with its uncertainty and its origin."""

from hwnas.predictors.calibration import NetworkMeasurement, Pool, calibrate
from hwnas.predictors.device import DevicePredictor
from hwnas.predictors.estimate import CostKind, CostSource, Estimate, Predictor
from hwnas.predictors.prediction import KnownDevice, Prediction, known_devices, predict
from hwnas.predictors.shipped import shipped_experience
from hwnas.predictors.store import DeviceProfile, DeviceStore

__all__ = [
    "CostKind",
    "CostSource",
    "DevicePredictor",
    "DeviceProfile",
    "DeviceStore",
    "Estimate",
    "KnownDevice",
    "NetworkMeasurement",
    "Pool",
    "Prediction",
    "Predictor",
    "calibrate",
    "known_devices",
    "predict",
    "shipped_experience",
]
