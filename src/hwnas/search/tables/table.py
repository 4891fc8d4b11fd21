"""Table of networks with one column for each objective, assembled from files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import closest
from hwnas.predictors.benchmarks.cost_table import read_arrays
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search.objectives.objective import Direction
from hwnas.search_spaces import OperatorCountTable
from hwnas.search_spaces.tabular import Arrays, Codes, TabularSpace, tabular_space

__all__ = [
    "Column",
    "ObjectiveTable",
    "column_names",
    "read_column",
    "read_objective_table",
    "read_test_table",
]

_DIRECTIONS: Mapping[str, Direction] = {"max": "maximize", "min": "minimize"}
_HEADERS = ("devices", "columns", "energy_columns")
_ENCODINGS = ("archs", "choice", "ops", "ks")
_OF_DECODERS = ("embed_dim", "n_layer", "bias", "mlp_ratio", "n_head")


@dataclass(frozen=True)
class Column:
    """Values of one objective for N networks.

    Attributes:
        file: File of the values.
        array: Name of the array in the file.
        column: Name or index of the array's column; empty if the array has only one.
        direction: Direction that is better.
        values: Values of shape (N,), finite.
    """

    file: Path
    array: str
    column: str
    direction: Direction
    values: Numbers

    @property
    def label(self) -> str:
        """Label of the objective, e.g. ``"lat_ms[fpga]"``."""
        return f"{self.array}[{self.column}]" if self.column else self.array

    @property
    def losses(self) -> Numbers:
        """Values with a sign such that smaller is better."""
        return self.values if self.direction == "minimize" else -self.values


@dataclass(frozen=True)
class ObjectiveTable:
    """Networks of a table and their values in each objective.

    Attributes:
        space: Search space of the networks.
        codes: Codes of the networks, (N, P).
        columns: The m objectives.
    """

    space: TabularSpace
    codes: Codes
    columns: tuple[Column, ...]

    @property
    def losses(self) -> Numbers:
        """Losses of shape (N, m): smaller is better."""
        return np.column_stack([column.losses for column in self.columns])

    @cached_property
    def connected(self) -> npt.NDArray[np.bool_]:
        """Mask of the networks whose output depends on their input, (N,)."""
        return self.space.connected(self.codes)

    @cached_property
    def _steps(self) -> OperatorCountTable | None:
        return self.space.steps(self.codes)

    @cached_property
    def statistics(self) -> Numbers | None:
        """Features counted from the networks without training, (N, F); None if not known."""
        depth = self.space.depth(self.codes)
        if self._steps is None or depth is None:
            return None
        return np.column_stack([blocks_of_steps(self._steps)["physical"], depth])

    @cached_property
    def size(self) -> Numbers | None:
        """Mean of the logarithms of MACs and weight bytes, (N,); None if not known."""
        steps = self._steps
        if steps is None:
            return None
        sizes = np.array([(s.macs, s.weight_bytes) if not s.dead else (0, 0) for s in steps.steps])
        return np.asarray(np.log(steps.total(sizes.astype(np.float64))).mean(1))

    @cached_property
    def row_of(self) -> dict[bytes, int]:
        """First row of each network, by the bytes of its code."""
        keys = [row.tobytes() for row in np.ascontiguousarray(self.codes)]
        return {key: i for i, key in reversed(list(enumerate(keys)))}

    def rows_of(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return the rows of networks that are in the table."""
        keys = np.ascontiguousarray(codes, dtype=np.int64)
        return np.array([self.row_of[row.tobytes()] for row in keys], dtype=np.int64)

    @property
    def is_grid(self) -> bool:
        """True if the table holds every code of the space."""
        return len(self.row_of) == np.prod(np.array(self.space.options, dtype=np.float64))


def read_objective_table(objectives: Sequence[str]) -> ObjectiveTable:
    """Read objectives from files that all have the same rows.

    Args:
        objectives: Objectives of the form ``"FILE:ARRAY[:COLUMN]:max|min"``; ``ARRAY[NAME]`` picks
            a column by the names in the file's ``devices`` or ``columns``.

    Raises:
        ConfigError: An objective is not of that form, occurs twice, or names a missing array or
            column.
        DataError: A file is missing or damaged, the numbers of rows differ, or no file has an
            encoding of its networks.
    """
    columns = tuple(read_column(text) for text in objectives)
    labels = [(column.file, column.label) for column in columns]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"--table {label[1]} appears twice; remove one")
    space, codes = _networks([column.file for column in columns])
    for column in columns:
        if len(column.values) != len(codes):
            raise DataError(
                f"{column.label} of {column.file} has {len(column.values)} rows, but there are "
                f"{len(codes)} networks; expected the same rows in all files"
            )
    return ObjectiveTable(space, codes, columns)


def read_test_table(table: ObjectiveTable, objectives: Sequence[str]) -> ObjectiveTable:
    """Return a table of the same networks in which some objectives are replaced.

    Args:
        table: Table that is searched.
        objectives: Objectives of the form of `read_objective_table`. Each replaces the first
            objective with the same direction that is not replaced yet.

    Raises:
        ConfigError: An objective replaces none, or is not of that form.
        DataError: A file is missing or damaged, or has another number of rows.
    """
    columns = list(table.columns)
    replaced: set[int] = set()
    for text in objectives:
        new = read_column(text)
        if len(new.values) != len(table.codes):
            raise DataError(
                f"--test-table {text}: {len(new.values)} rows, but there are {len(table.codes)} "
                "networks; expected one row for each"
            )
        alike = [j for j, old in enumerate(table.columns) if old.direction == new.direction]
        free = [j for j in alike if j not in replaced]
        if not free:
            raise ConfigError(
                f"--test-table {text} has no objective of --table to replace; give at most one for "
                "each objective of the same direction"
            )
        columns[free[0]] = new
        replaced.add(free[0])
    return ObjectiveTable(table.space, table.codes, tuple(columns))


def _networks(files: Sequence[Path]) -> tuple[TabularSpace, Codes]:
    """Return space and codes from the first of `_ENCODINGS` that one of the files has."""
    tables = {path: read_arrays(path) for path in dict.fromkeys(files)}
    for arrays in tables.values():
        if all(name in arrays for name in _OF_DECODERS):
            space = tabular_space({name: arrays[name] for name in _OF_DECODERS})
            return space, space.encode(arrays)
    for name in _ENCODINGS:
        for arrays in tables.values():
            if name not in arrays or arrays[name].ndim != 2:
                continue
            wanted = ("ks", "e", "d", "r", "resolution") if name == "ks" else (name,)
            encoding = {k: v for k, v in arrays.items() if k in wanted or k in ("op_names", "ops")}
            if "resolution" in encoding:
                encoding.setdefault("r", encoding.pop("resolution"))
            space = tabular_space(_without_others(encoding, name))
            return space, space.encode(encoding)
    raise DataError(
        f"none of {', '.join(map(str, tables))} has an encoding of its networks; expected integers "
        "of two dimensions in archs, choice or ops, ks with e and d, or the arrays of HW-GPT-Bench"
    )


def _without_others(arrays: Arrays, name: str) -> Arrays:
    """Return the arrays without other two-dimensional encodings, which might be read instead."""
    return {
        key: array
        for key, array in arrays.items()
        if key == name or name == "ks" or key not in _ENCODINGS or array.ndim == 1
    }


def read_column(text: str) -> Column:
    """Read an objective of the form ``"FILE:ARRAY[:COLUMN]:max|min"``.

    Raises:
        ConfigError: The text is not of that form, or names a missing array or column.
        DataError: The file is missing or damaged, or a value is not finite.
    """
    match = re.fullmatch(
        r"(?P<file>.+?):(?P<array>\w+)(?:\[(?P<name>[^\]]+)\])?(?::(?P<column>[^:]+))?:(?P<to>\w+)",
        text,
    )
    if match is None or match["to"] not in _DIRECTIONS:
        raise ConfigError(
            f"--table {text!r}: expected FILE:ARRAY[:COLUMN]:max or :min, such as "
            "acc.npz:test_acc:max or lat.npz:lat_ms[fpga]:min"
        )
    path, name = Path(match["file"]), match["array"]
    arrays = read_arrays(path)
    if name not in arrays:
        raise ConfigError(f"{path} has no array {name!r}; {closest(name, arrays)}")
    column = match["name"] or match["column"] or ""
    values = _values(path, arrays, name, column)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(
            f"{path}: {name} of row {wrong[0]} is {values[wrong[0]]}; expected finite numbers"
        )
    return Column(path, name, column, _DIRECTIONS[match["to"]], values)


def _values(path: Path, arrays: Arrays, name: str, column: str) -> Numbers:
    array = arrays[name]
    if not np.issubdtype(array.dtype, np.number) or array.ndim not in (1, 2) or not len(array):
        raise ConfigError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}; expected numbers, one row "
            "for each network"
        )
    if array.ndim == 1:
        if column:
            raise ConfigError(f"{path}: {name} has one column only; leave out {column!r}")
        return array.astype(np.float64)
    names = column_names(arrays, array.shape[1])
    if not column:
        raise ConfigError(
            f"{path}: {name} has {array.shape[1]} columns; name one, such as "
            f"{name}[{(*names, '0')[0]}]"
        )
    if column in names:
        return array[:, names.index(column)].astype(np.float64)
    if column.isdigit() and int(column) < array.shape[1]:
        return array[:, int(column)].astype(np.float64)
    known = names or [str(i) for i in range(array.shape[1])]
    raise ConfigError(f"{path}: {name} has no column {column!r}; {closest(column, known)}")


def column_names(arrays: Arrays, count: int) -> list[str]:
    """Return the names of an array's columns; empty if the file has no list of ``count`` names."""
    for header in _HEADERS:
        names = arrays.get(header)
        if names is not None and names.ndim == 1 and len(names) == count:
            return [str(name) for name in names]
    return []
