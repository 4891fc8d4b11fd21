"""Export of networks to ONNX, deployment bundles, runtimes, and latency measurement on targets."""

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.packing import BundleFacts, BundleNetwork, write_bundle
from hwnas.deploy.bundles.sealed import SealCheck
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.export.to_onnx import Export, export_onnx
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement, Quantiles, TimedNetwork
from hwnas.deploy.measurement.timing import measure, measure_together
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.runtime import Runtime, Session
from hwnas.deploy.targets.catalogue import DeviceStatus, devices, machine, versions
from hwnas.deploy.targets.target import Device, Target

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
