"""Published tables of the costs of many networks on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import closest
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces.tabular import Arrays, Codes, TabularSpace, tabular_space

__all__ = ["CostTable", "Metric", "read_arrays", "read_cost_table"]

Metric = Literal["latency", "energy"]
_COSTS = {
    "latency": ("lat_ms", ("devices", "columns")),
    "energy": ("energy_mj", ("energy_columns",)),
}
_ACCURACIES = ("accuracy", "task_accuracy", "mean_acc", "top1")


@dataclass(frozen=True)
class CostTable:
    """Costs of N networks on D devices.

    Attributes:
        space: Space of the networks.
        codes: Codes of the networks, of shape (N, positions).
        metric: ``"latency"`` in milliseconds or ``"energy"`` in millijoules.
        devices: Names of the columns.
        costs: Positive costs, of shape (N, D).
        latencies_ms: For energy, latencies of the same shape; NaN where there is none.
        accuracies: Accuracies of shape (N, A), or None; higher is better.
        accuracy_names: Names of the A columns; may be empty.
        representatives: Row indices of shape (N,): rows with the same index are isomorphic networks
            that share one measurement; None if each was measured.
    """

    space: TabularSpace
    codes: Codes
    metric: Metric
    devices: tuple[str, ...]
    costs: Numbers
    latencies_ms: Numbers | None = None
    accuracies: Numbers | None = None
    accuracy_names: tuple[str, ...] = ()
    representatives: npt.NDArray[np.int64] | None = None

    def column(self, device: str) -> int:
        """Return the column of a device.

        Raises:
            ConfigError: The table has no such device.
        """
        if device not in self.devices:
            raise ConfigError(
                f"the table has no device {device!r}; {closest(device, self.devices)}"
            )
        return self.devices.index(device)

    def accuracy_for(self, device: str) -> Numbers | None:
        """Return the accuracies (N,) of the task that ends a device's name, or of the first task.

        The result is None if the table has no accuracies.
        """
        if self.accuracies is None:
            return None
        ends = [i for i, name in enumerate(self.accuracy_names) if device.endswith(name)]
        accuracy: Numbers = self.accuracies[:, ends[0] if ends else 0]
        return accuracy


def read_cost_table(path: Path, metric: Metric = "latency", space: str | None = None) -> CostTable:
    """Read an ``.npz`` file of arrays; nothing in it may be a pickle.

    Args:
        path: File with ``lat_ms`` (N, D) and ``devices`` or ``columns`` (D,), or ``energy_mj`` and
            ``energy_columns``; an encoding of the networks in ``archs``, ``choice``, ``ops`` or
            ``ks`` + ``e`` + ``d`` (+ ``r``); optionally ``rep_arch_idx`` and accuracies.
        metric: Costs to read.
        space: Name of the space; if None, it is recognised from the encoding.

    Raises:
        DataError: The file is missing or damaged, or a cost in it is not a positive number.
    """
    arrays = read_arrays(path)
    costs, devices = _costs(path, arrays, metric)
    wrong = np.argwhere(~(np.isfinite(costs) & (costs > 0)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"{path}: {metric} of row {row} on {devices[column]} is {costs[row, column]}; expected "
            "positive numbers"
        )
    found = tabular_space(arrays, space)
    codes = found.encode(arrays)
    representatives = arrays.get("rep_arch_idx")
    accuracies, names = _accuracies(arrays)
    for name, array in (
        ("encoding", codes),
        ("accuracies", accuracies),
        ("rep_arch_idx", representatives),
    ):
        if array is not None and len(array) != len(costs):
            raise DataError(
                f"{path}: {len(costs)} rows of costs and {len(array)} of {name}; expected equal "
                "numbers"
            )
    if representatives is not None:
        if representatives.min() < 0 or representatives.max() >= len(codes):
            raise DataError(
                f"{path}: rep_arch_idx goes from {representatives.min()} to "
                f"{representatives.max()}; expected indices of the {len(codes)} rows"
            )
        codes = codes[representatives]  # the networks that were measured for the rows
    return CostTable(
        found,
        codes,
        metric,
        devices,
        costs,
        _latencies(arrays, devices) if metric == "energy" else None,
        accuracies,
        names,
        None if representatives is None else representatives.astype(np.int64),
    )


def read_arrays(path: Path) -> Arrays:
    """Return all arrays of an ``.npz`` file.

    Raises:
        DataError: The file is missing or damaged, or holds a pickle.
    """
    if not path.is_file():
        raise DataError(f"there is no table {path}; give the path of an .npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, BadZipFile, EOFError, AttributeError) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays: {error}") from error


def _costs(path: Path, arrays: Arrays, metric: Metric) -> tuple[Numbers, tuple[str, ...]]:
    name, headers = _COSTS[metric]
    header = next((each for each in headers if each in arrays), None)
    if name not in arrays or header is None:
        raise DataError(
            f"{path} has no {name} with {' or '.join(headers)}, which --metric {metric} reads; it "
            f"has {', '.join(sorted(arrays))}"
        )
    costs, devices = arrays[name].astype(np.float64), tuple(map(str, arrays[header]))
    if costs.ndim != 2 or costs.shape[1] != len(devices) or not len(costs):
        raise DataError(
            f"{path}: {name} has the shape {costs.shape}; expected (networks, {len(devices)}), as "
            f"{header} has {len(devices)} names"
        )
    if len(set(devices)) < len(devices):
        twice = sorted({each for each in devices if devices.count(each) > 1})
        raise DataError(f"{path}: {header} names {', '.join(twice)} more than once")
    return costs, devices


def _latencies(arrays: Arrays, devices: Sequence[str]) -> Numbers | None:
    """Return the latencies in the order of the energy's columns, or None if there are none."""
    header = next((arrays[each] for each in _COSTS["latency"][1] if each in arrays), None)
    if header is None or "lat_ms" not in arrays:
        return None
    names, table = list(map(str, header)), arrays["lat_ms"].astype(np.float64)
    missing = np.full(len(table), np.nan)
    return np.column_stack([table[:, names.index(d)] if d in names else missing for d in devices])


def _accuracies(arrays: Arrays) -> tuple[Numbers | None, tuple[str, ...]]:
    name = next((each for each in _ACCURACIES if each in arrays), None)
    if name is None:
        return None, ()
    found: Any = arrays[name].astype(np.float64)
    columns = arrays.get(f"{name}_columns", np.array([]))
    return found.reshape(len(found), -1), tuple(map(str, columns))
