"""Splits of published tables into known and new devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["FAMILIES", "SPLITS", "Family", "Split", "random_splits"]

_NASBENCH201 = "latency/nasbench201_latency_help.npz"
_FBNET = "latency/fbnet_latency_help.npz"
_OFA = "latency/ofa_mbv3_latency_help.npz"
_PI5 = "latency/nasbench201_hwnas360.npz"


@dataclass(frozen=True)
class Split:
    """One setting of the benchmark.

    Attributes:
        table: Path of the table under ``HWNAS_DATA``.
        train: Known devices.
        test: New devices.
        samples: Number of measurements of each new device.
        protocol: Protocol, as in `hwnas bench predictor`.
        pool: Number of rows of the pool, which are the first ones of the table.
        metric: Metric, as in `hwnas bench predictor`.
    """

    table: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    samples: int
    protocol: Literal["trimmed", "full"]
    pool: int = 900
    metric: Literal["latency", "energy"] = "latency"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


# HELP's meta-train and meta-validation devices, and the meta-test devices that are in the tables.
_HELP_TRAIN = _listed(
    "1080ti_1 1080ti_32 1080ti_256 silver_4114 silver_4210r samsung_a50 pixel3 essential_ph_1 "
    "samsung_s7"
)
_HELP_VALID = _listed("titanx_1 titanx_32 titanx_256 gold_6240")
_HELP_TEST = _listed("titan_rtx_256 gold_6226 fpga")
# NASFLAT's device sets of FBNet: known and new devices.
_FBNET_SETS = {
    "FD": (
        "1080ti_1 1080ti_32 1080ti_64 silver_4114 silver_4210r samsung_a50 pixel3 essential_ph_1 "
        "samsung_s7",
        "fpga raspi4 eyeriss",
    ),
    "F1": (
        "2080ti_1 essential_ph_1 silver_4114 titan_rtx_1 titan_rtx_32",
        "eyeriss fpga raspi4 samsung_a50 samsung_s7",
    ),
    "F2": (
        "essential_ph_1 gold_6226 gold_6240 pixel3 raspi4",
        "1080ti_1 1080ti_32 2080ti_32 titan_rtx_1 titanxp_1",
    ),
    "F3": (
        "essential_ph_1 pixel2 pixel3 raspi4 samsung_s7",
        "1080ti_1 1080ti_32 2080ti_1 titan_rtx_1 titan_rtx_32",
    ),
    "F4": (
        "1080ti_64 2080ti_1 eyeriss gold_6226 gold_6240 raspi4 samsung_s7 silver_4210r "
        "titan_rtx_1 titan_rtx_32",
        "1080ti_1 pixel2 essential_ph_1",
    ),
    "FA": (
        "1080ti_1 1080ti_32 1080ti_64 2080ti_1 2080ti_32 2080ti_64 titan_rtx_1 titan_rtx_32 "
        "titan_rtx_64 titanx_1 titanx_32 titanx_64 titanxp_1 titanxp_32 titanxp_64",
        "gold_6226 essential_ph_1 samsung_s7 pixel2",
    ),
}


def _energy_splits() -> dict[str, Split]:
    """Return splits in which one framework on the Raspberry Pi 5 is new.

    Both tasks are known of the other frameworks.
    """
    frameworks = ("litert", "onnx", "torchmobile")
    tasks = ("cifar100", "ninapro")
    return {
        f"energy-{new}": Split(
            _PI5,
            tuple(f"pi5_{known}_{task}" for known in frameworks if known != new for task in tasks),
            tuple(f"pi5_{new}_{task}" for task in tasks),
            10,
            "full",
            metric="energy",
        )
        for new in frameworks
    }


SPLITS: dict[str, Split] = {
    "nb201-trimmed-20": Split(_NASBENCH201, _HELP_TRAIN, _HELP_TEST, 20, "trimmed"),
    "nb201-full-10": Split(_NASBENCH201, _HELP_TRAIN, _HELP_TEST, 10, "full"),
    "nb201-valid-trimmed-20": Split(_NASBENCH201, _HELP_TRAIN, _HELP_VALID, 20, "trimmed"),
    "nb201-valid-full-10": Split(_NASBENCH201, _HELP_TRAIN, _HELP_VALID, 10, "full"),
    **{
        f"fbnet-{name}": Split(_FBNET, _listed(known), _listed(new), 20, "full", pool=800)
        for name, (known, new) in _FBNET_SETS.items()
    },
    **_energy_splits(),
}


def random_splits(devices: tuple[str, ...], count: int = 10) -> dict[str, Split]:
    """Return fixed random splits of FBNet's devices: half known, five of the rest new."""
    splits = {}
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(sorted(devices)).tolist()
        known, new = order[: len(order) // 2], order[len(order) // 2 :][:5]
        splits[f"fbnet-random-{seed}"] = Split(
            _FBNET, tuple(known), tuple(new), 20, "full", pool=800
        )
    return splits


@dataclass(frozen=True)
class Family:
    """Devices of one kind in a table, which are new together.

    Attributes:
        name: Name of the kind.
        table: Path of the table under ``HWNAS_DATA``.
        devices: Devices of the family; all others of the table are known.
        pool: Number of rows of the pool, which are the first ones of the table.
        metric: Metric, as in `hwnas bench predictor`.
    """

    name: str
    table: str
    devices: tuple[str, ...]
    pool: int = 900
    metric: Literal["latency", "energy"] = "latency"


def _gpus(models: str, batches: str) -> tuple[str, ...]:
    return tuple(f"{model}_{batch}" for model in _listed(models) for batch in _listed(batches))


_NVIDIA = "1080ti 2080ti titan_rtx titanx titanxp"
_XEON = _listed("gold_6226 gold_6240 silver_4114 silver_4210r")
_PHONES = _listed("essential_ph_1 pixel3 samsung_a50 samsung_s7")

FAMILIES: dict[str, tuple[Family, ...]] = {
    "nb201": (
        Family("nvidia", _NASBENCH201, _gpus(_NVIDIA, "1 32 256")),
        Family("xeon", _NASBENCH201, _XEON),
        Family("phones", _NASBENCH201, _PHONES),
        Family("fpga", _NASBENCH201, ("fpga",)),
    ),
    "fbnet": (
        Family("nvidia", _FBNET, _gpus(_NVIDIA, "1 32 64"), 800),
        Family("xeon", _FBNET, _XEON, 800),
        Family("phones", _FBNET, ("pixel2", *_PHONES), 800),
        Family("raspi4", _FBNET, ("raspi4",), 800),
        Family("fpga", _FBNET, ("fpga",), 800),
        Family("eyeriss", _FBNET, ("eyeriss",), 800),
    ),
    "ofa": tuple(
        Family(model, _OFA, _gpus(model, "1 32 64"), 800)
        for model in ("2080ti", "titan_xp", "v100")
    ),
    "energy": tuple(
        Family(split.removeprefix("energy-"), _PI5, SPLITS[split].test, metric="energy")
        for split in SPLITS
        if split.startswith("energy-")
    ),
}
