"""Export of networks to ONNX, deployment bundles, runtimes, and latency measurement on targets."""

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.cascade import Cascade
from hwnas.deploy.catalogue import DeviceStatus, devices, machine, versions
from hwnas.deploy.device import Device, Target
from hwnas.deploy.export import Export, export_onnx
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.latency_timer import TimingSettings
from hwnas.deploy.measurement import Measurement, Quantiles
from hwnas.deploy.packing import write_bundle
from hwnas.deploy.runtime import Runtime, Session
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.sealed import SealCheck
from hwnas.deploy.timing import TimedNetwork, measure, measure_together

__all__ = [
    "RUNTIMES",
    "Bundle",
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
