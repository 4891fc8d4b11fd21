from .bundles.bundle import Bundle
from .bundles.packing import BundleFacts, BundleNetwork, write_bundle
from .bundles.sealed import SealCheck
from .cascades.cascade import Cascade
from .export.to_onnx import Export, export_onnx
from .io import OutputMeaning, Preprocessing
from .measurement.latency_timer import TimingSettings
from .measurement.measurement import Measurement, Quantiles, TimedNetwork
from .measurement.timing import measure, measure_together
from .runtimes import RUNTIMES
from .runtimes.runtime import Runtime, Session
from .targets.machine import machine, versions
from .targets.status import DeviceStatus, devices
from .targets.target import Device, Target

__all__ = [
    "RUNTIMES",
    "Bundle",
    "BundleFacts",
    "BundleNetwork",
    "Cascade",
    "Device",
    "DeviceStatus",
    "Export",
    "Measurement",
    "OutputMeaning",
    "Preprocessing",
    "Quantiles",
    "Runtime",
    "SealCheck",
    "Session",
    "Target",
    "TimedNetwork",
    "TimingSettings",
    "devices",
    "export_onnx",
    "machine",
    "measure",
    "measure_together",
    "versions",
    "write_bundle",
]
