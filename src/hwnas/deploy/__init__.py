"""Export of networks to ONNX, deployment bundles, runtimes, and latency measurement on targets."""

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.cascade import Cascade
from hwnas.deploy.catalogue import DeviceStatus, devices, machine, versions
from hwnas.deploy.device import Device, Target
from hwnas.deploy.export import Export, export_onnx
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement import Measurement, Quantiles
from hwnas.deploy.packing import write_bundle
from hwnas.deploy.runtime import Runtime, Session
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.sealed import Check
from hwnas.deploy.stopwatch import TimingSettings
from hwnas.deploy.timing import Subject, measure, measure_together

__all__ = [
    "RUNTIMES",
    "Bundle",
    "Cascade",
    "Check",
    "Device",
    "DeviceStatus",
    "Export",
    "Measurement",
    "OutputMeaning",
    "Preprocessing",
    "Quantiles",
    "Runtime",
    "Session",
    "Subject",
    "Target",
    "TimingSettings",
    "devices",
    "export_onnx",
    "machine",
    "measure",
    "measure_together",
    "versions",
    "write_bundle",
]
