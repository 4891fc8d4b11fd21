"""Predicted costs of candidates, each with its uncertainty and its origin."""

from hwnas.predictors.devices.calibration import (
    CalibrationOptions,
    NetworkMeasurement,
    Pool,
    calibrate,
)
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.prediction import KnownDevice, Prediction, known_devices, predict
from hwnas.predictors.devices.shipped import shipped_prior
from hwnas.predictors.devices.spec_sheet import SpecSheet, read_spec
from hwnas.predictors.devices.store import DeviceProfile, DeviceStore
from hwnas.predictors.estimate import CostKind, CostSource, Estimate, Predictor

__all__ = [
    "CalibrationOptions",
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
    "SpecSheet",
    "calibrate",
    "known_devices",
    "predict",
    "read_spec",
    "shipped_prior",
]
