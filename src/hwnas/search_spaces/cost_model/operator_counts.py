"""Operator counts of many networks as one table: distinct operators, and counts per network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np
import numpy.typing as npt
import scipy

from hwnas.errors import ArtifactError
from hwnas.search_spaces.cost_model.workload import NetworkOperator, OperatorKind, Workload

__all__ = ["Assembly", "OperatorCountTable", "OperatorSignature", "PartTable", "counted"]

_BYTES = 4  # per weight
_NORM_BYTES = 16  # per channel of a batch normalisation: scale, shift, mean and variance
_NORM_PARAMS = 2  # per channel: scale and shift
_KINDS: tuple[OperatorKind, ...] = get_args(OperatorKind)


@dataclass(frozen=True, slots=True)
class OperatorSignature:
    """Operator with its sizes, without its position in a network.

    Sizes are those at batch 1, unless the operator was traced at another batch size.

    Attributes:
        kind: Kind of operator.
        macs: Multiply-accumulates.
        read_bytes: Bytes of activations that the operator reads.
        written_bytes: Bytes of activations that the operator writes.
        weight_bytes: Bytes of weights that the operator reads.
        kernel_size: Height of a convolution's kernel, 0 for others.
        stride: Stride of a convolution, 0 for others.
        dead: Whether a compiler may remove the operator: no output of the network depends on it, or
            it works on a constant.
    """

    kind: OperatorKind
    macs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    weight_bytes: int = 0
    kernel_size: int = 0
    stride: int = 0
    dead: bool = False

    @property
    def bytes_moved(self) -> int:
        """Bytes that the operator reads and writes, each tensor once."""
        return self.read_bytes + self.written_bytes + self.weight_bytes

    def per_image(self, batch: int) -> OperatorSignature:
        """Return the same operator at batch 1, given that this one is at ``batch``."""
        return replace(
            self,
            macs=self.macs // batch,
            read_bytes=self.read_bytes // batch,
            written_bytes=self.written_bytes // batch,
        )

    @classmethod
    def of(cls, operator: NetworkOperator, workload: Workload) -> OperatorSignature:
        """Create a step from an operator of a workload."""
        tensors = [workload.tensors[i] for i in dict.fromkeys(operator.inputs)]
        weights = sum(tensor.bytes for tensor in tensors if tensor.role == "weight")
        read = sum(tensor.bytes for tensor in tensors) - weights
        # A tensor that is written in place is read, too: its bytes move both ways.
        written = sum(workload.tensors[i].bytes for i in operator.outputs)
        if operator.kind == "view":
            read = written = 0
        sizes = operator.macs, read, written, weights, operator.kernel_size, operator.stride
        return cls(operator.kind, *sizes, operator.dead)


@dataclass(frozen=True)
class Assembly:
    """N networks that consist of parts.

    Attributes:
        parts: For each place in a network, the parts that may stand there, in order; a part is the
            count of each of its operators.
        chosen: Index of the part at each place, of shape (N, len(parts)).
    """

    parts: Sequence[Sequence[Mapping[OperatorSignature, int]]]
    chosen: npt.NDArray[np.integer]


@dataclass(frozen=True)
class OperatorCountTable:
    """Networks as counts of operators.

    A quantity that is additive over operators takes one sparse product.

    Attributes:
        steps: Distinct operators, S of them.
        rows_of_steps: Sparse counts of shape (N, S): how often network n contains operator s. If
            ``taken`` is given, the rows are those of P parts instead, of shape (P, S).
        taken: Sparse counts of shape (N, P), if networks consist of parts: how often network n
            contains part p. An additive quantity is then summed over the operators of each part
            first, which takes far fewer additions.
    """

    steps: tuple[OperatorSignature, ...]
    rows_of_steps: scipy.sparse.csr_array
    taken: scipy.sparse.csr_array | None = None

    def __len__(self) -> int:
        return int((self.rows_of_steps if self.taken is None else self.taken).shape[0])

    @cached_property
    def counts(self) -> scipy.sparse.csr_array:
        """Sparse counts of shape (N, S): how often network n contains operator s."""
        if self.taken is None:
            return self.rows_of_steps
        return scipy.sparse.csr_array(self.taken @ self.rows_of_steps)

    @classmethod
    def of(cls, networks: Iterable[Mapping[OperatorSignature, int]]) -> OperatorCountTable:
        """Create a table of networks that are given as operator counts."""
        index: dict[OperatorSignature, int] = {}
        columns: list[int] = []
        values: list[int] = []
        ends = [0]
        for network in networks:
            columns += [index.setdefault(step, len(index)) for step in network]
            values += network.values()
            ends.append(len(columns))
        shape = len(ends) - 1, len(index)
        return cls(
            tuple(index), scipy.sparse.csr_array((np.array(values, float), columns, ends), shape)
        )

    @classmethod
    def of_workloads(cls, workloads: Sequence[Workload]) -> OperatorCountTable:
        """Create a table of networks as deployed: without operators that an export folds away."""
        return cls.of(
            Counter(OperatorSignature.of(op, each) for op in each.operators if not op.folded)
            for each in workloads
        )

    def per_image(self, batch: int) -> OperatorCountTable:
        """Return the same networks at batch 1, given that these are at ``batch``."""
        return replace(self, steps=tuple(step.per_image(batch) for step in self.steps))

    @classmethod
    def of_parts(cls, assembly: Assembly) -> OperatorCountTable:
        """Create a table of networks that consist of parts."""
        return PartTable.of(assembly.parts).networks(assembly.chosen)

    @classmethod
    def stacked(cls, tables: Sequence[OperatorCountTable]) -> OperatorCountTable:
        """Return the networks of several tables as one table, in order."""
        return cls.of(network for table in tables for network in table._networks())

    def _networks(self) -> Iterable[Mapping[OperatorSignature, int]]:
        for start, end in zip(self.counts.indptr[:-1], self.counts.indptr[1:], strict=True):
            columns, values = self.counts.indices[start:end], self.counts.data[start:end]
            yield {self.steps[i]: int(count) for i, count in zip(columns, values, strict=True)}

    def to_arrays(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return integer arrays that hold the whole table; `from_arrays` is the inverse."""
        steps = [(_KINDS.index(step.kind), *astuple(step)[1:]) for step in self.steps]
        return {
            "steps": np.array(steps, dtype=np.int64).reshape(len(steps), -1),
            "counts": self.counts.data.astype(np.int64),
            "taken": self.counts.indices.astype(np.int64),
            "ends": self.counts.indptr.astype(np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.int64]]) -> OperatorCountTable:
        """Create a table from the arrays of `to_arrays`.

        Raises:
            ArtifactError: An array is missing or malformed.
        """
        try:
            steps = tuple(
                OperatorSignature(
                    _KINDS[kind], macs, read, written, weights, kernel, stride, bool(dead)
                )
                for kind, macs, read, written, weights, kernel, stride, dead in arrays[
                    "steps"
                ].tolist()
            )
            counts = arrays["counts"].astype(np.float64), arrays["taken"], arrays["ends"]
            table = scipy.sparse.csr_array(counts, (len(arrays["ends"]) - 1, len(steps)))
            table.check_format()
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ArtifactError(f"not a table of operator counts: {error}") from error
        return cls(steps, table)

    def rows(self, index: npt.NDArray[np.integer]) -> OperatorCountTable:
        """Return the table of some networks, in the order of ``index``."""
        if self.taken is None:
            return replace(self, rows_of_steps=self.rows_of_steps[index])
        return replace(self, taken=self.taken[index])

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of values over the operators of each network.

        Args:
            values: One value or F values for each operator, of shape (S,) or (S, F).

        Returns:
            Sums, of shape (N,) or (N, F).
        """
        sums: npt.NDArray[np.float64] = self.rows_of_steps @ values
        return sums if self.taken is None else self.taken @ sums

    @cached_property
    def macs(self) -> npt.NDArray[np.float64]:
        """Multiply-accumulates of each network, of shape (N,); dead operators are included."""
        return self.total(np.array([step.macs for step in self.steps], dtype=np.float64))


@dataclass(frozen=True)
class PartTable:
    """Operator counts of all parts that the networks of a space may consist of.

    Attributes:
        parts: Every part of every place, one part a row, place after place.
        starts: Row of the first part of each place.
    """

    parts: OperatorCountTable
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Sequence[Mapping[OperatorSignature, int]]]) -> PartTable:
        """Create a table from the operator counts of each part that may stand at each place."""
        starts = np.cumsum([0, *(len(place) for place in parts)])[:-1].astype(np.int64)
        return cls(OperatorCountTable.of(part for place in parts for part in place), starts)

    def networks(self, chosen: npt.NDArray[np.integer]) -> OperatorCountTable:
        """Return the table of N networks.

        Args:
            chosen: Index of the part at each place, of shape (N, places).
        """
        rows, places = chosen.shape
        ends = np.arange(rows + 1) * places
        columns = (chosen.astype(np.int64) + self.starts).ravel()
        shape = rows, len(self.parts)
        taken = scipy.sparse.csr_array((np.ones(rows * places), columns, ends), shape)
        return OperatorCountTable(self.parts.steps, self.parts.counts, taken)

    @cached_property
    def deployed(self) -> PartTable:
        """Same parts without batch normalisations, which an export folds away."""
        left = [i for i, step in enumerate(self.parts.steps) if step.kind != "norm"]
        steps = tuple(self.parts.steps[i] for i in left)
        counts = scipy.sparse.csr_array(self.parts.counts.tocsc()[:, left])
        return PartTable(OperatorCountTable(steps, counts), self.starts)


def counted(table: OperatorCountTable) -> dict[str, npt.NDArray[np.int64]]:
    """Return costs as a workload counts them, for float32 networks.

    The networks must not share weights among their operators.

    Args:
        table: Operator counts that include batch normalisations.

    Returns:
        ``macs``, ``params`` and ``weight_bytes``, each of shape (N,).
    """
    norms = np.array([step.kind == "norm" for step in table.steps], dtype=bool)
    weights = np.array([step.weight_bytes for step in table.steps], dtype=np.int64)
    params = np.where(norms, weights * _NORM_PARAMS // _NORM_BYTES, weights // _BYTES)
    macs = np.array([step.macs for step in table.steps], dtype=np.int64)
    sums = table.total(np.column_stack([macs, params, weights]).astype(np.float64))
    return dict(zip(("macs", "params", "weight_bytes"), sums.astype(np.int64).T, strict=True))
