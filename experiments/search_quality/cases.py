"""Searches of published tables: objectives, and the costs known before the first evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.errors import ConfigError

__all__ = ["CASES", "GROUPS", "Case"]

_ACCURACIES = "nasbench/nasbench201.npz"
_LATENCIES = "latency/nasbench201_latency_help.npz"
_DEVICES = ("fpga", "gold_6226", "1080ti_1")
_VALIDATION = (("cifar10", "titanx_1"), ("cifar10", "gold_6240"), ("cifar100", "titanx_32"))


@dataclass(frozen=True)
class Case:
    """Search of a table.

    Attributes:
        table: Objectives in the format of ``hwnas bench search --table``, with files relative to
            ``HWNAS_DATA``.
        test: Test objectives in the format of ``--test-table``, likewise.
        known: Value of ``--known``.
        calibrate: Value of ``--calibrate``.
    """

    table: tuple[str, ...]
    test: tuple[str, ...] = ()
    known: str | None = None
    calibrate: int | None = None

    def __post_init__(self) -> None:
        if self.known is not None and self.calibrate is not None:
            raise ConfigError("a case has known and calibrate; give one of them")

    def objectives(self, folder: Path) -> list[str]:
        """Return the objectives with the full paths of their files."""
        return [f"{folder}/{text}" for text in self.table]

    def tests(self, folder: Path) -> list[str]:
        """Return the test objectives with the full paths of their files."""
        return [f"{folder}/{text}" for text in self.test]


def _cells(dataset: str, device: str, calibrate: int | None) -> Case:
    return Case(
        (
            f"{_ACCURACIES}:{dataset}_val_acc200:max",
            f"{_LATENCIES}:lat_ms[{device}]:min",
        ),
        (f"{_ACCURACIES}:{dataset}_test_acc200:max",),
        calibrate=calibrate,
    )


def _counted(file: str, accuracy: str, cost: str) -> Case:
    return Case((f"nasbench/{file}:{accuracy}:max", f"nasbench/{file}:{cost}:min"), known=cost)


CASES: Mapping[str, Case] = {
    **{f"{device}-calibrated": _cells("cifar100", device, 10) for device in _DEVICES},
    **{f"{device}-unknown": _cells("cifar100", device, None) for device in _DEVICES},
    "ofa-macs": _counted("ofa_mbv3_w10_imagenet.npz", "top1", "macs"),
    "macro-flops": _counted("nasbench_macro_cifar10.npz", "mean_acc", "flops"),
    "channels-resnet-params": _counted("channelbench_resnet_cifar10.npz", "mean_acc", "params"),
    "channels-mobilenet-flops": _counted("channelbench_mobilenet_cifar10.npz", "mean_acc", "flops"),
    **{
        f"hwgpt-{scale}-params": Case(
            (
                f"nasbench/hwgpt_{scale}_surrogate.npz:perplexity:min",
                f"nasbench/hwgpt_{scale}_surrogate.npz:block_params_m:min",
            ),
            known="block_params_m",
        )
        for scale in "sml"
    },
    **{f"validation-{d}-{device}": _cells(d, device, 10) for d, device in _VALIDATION},
}
"""Cases by name; the design choices of the samplers were made on the validation cases only."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "nb201-calibrated": tuple(f"{device}-calibrated" for device in _DEVICES),
    "nb201-unknown": tuple(f"{device}-unknown" for device in _DEVICES),
}
"""Groups of cases whose mean is recorded."""
