"""What many networks ask of hardware, as one table: the steps there are, and who takes which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from hwnas.errors import ArtifactError
from hwnas.search_spaces.workload import Operator, OperatorKind, Workload

__all__ = ["Assembly", "PartTable", "Step", "StepTable", "counted"]

_BYTES = 4  # of a weight
_NORM_BYTES = 16  # of a channel of a batch normalisation: scale and shift, mean and variance
_NORM_PARAMS = 2  # scale and shift
_KINDS: tuple[OperatorKind, ...] = get_args(OperatorKind)


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its sizes, without its place in a network; at batch 1 unless traced so.

    Attributes:
        kind: What sort of work it is.
        macs: Multiply-accumulates.
        read_bytes: Activations that it reads.
        written_bytes: Activations that it writes.
        weight_bytes: Weights that it reads.
        kernel_size: Height of a convolution's kernel, 0 for others.
        stride: Of a convolution, 0 for others.
        dead: Whether a compiler may drop it: no output of the network depends on it, or it works
            on a constant.
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
        """Everything that it reads and writes, each tensor once."""
        return self.read_bytes + self.written_bytes + self.weight_bytes

    def per_image(self, batch: int) -> Step:
        """The same step at batch 1, given what it is at some batch."""
        return replace(
            self,
            macs=self.macs // batch,
            read_bytes=self.read_bytes // batch,
            written_bytes=self.written_bytes // batch,
        )

    @classmethod
    def of(cls, operator: Operator, workload: Workload) -> Step:
        """An operator of a workload."""
        tensors = [workload.tensors[i] for i in dict.fromkeys(operator.inputs)]
        weights = sum(tensor.bytes for tensor in tensors if tensor.role == "weight")
        read = sum(tensor.bytes for tensor in tensors) - weights
        # What an operator writes in place, it has read; it moves there and back.
        written = sum(workload.tensors[i].bytes for i in operator.outputs)
        if operator.kind == "view":
            read = written = 0
        sizes = operator.macs, read, written, weights, operator.kernel_size, operator.stride
        return cls(operator.kind, *sizes, operator.dead)


@dataclass(frozen=True)
class Assembly:
    """N networks that are put together of parts.

    Attributes:
        parts: For each place in the network, the steps of each part that may stand there, in
            their order, and how often each is taken.
        chosen: Of shape (N, len(parts)): which part stands at each place.
    """

    parts: Sequence[Sequence[Mapping[Step, int]]]
    chosen: npt.NDArray[np.integer]


@dataclass(frozen=True)
class StepTable:
    """Networks as counts of steps. What is additive over steps takes one sparse product.

    Attributes:
        steps: The distinct steps, S of them.
        rows_of_steps: Sparse, of shape (N, S): how often network n takes step s.
        taken: Sparse, of shape (N, P), where networks are put together: how often network n takes
            each of the P parts that the rows of steps are then of. What is additive is added up
            over the parts first, which is much less to add.
    """

    steps: tuple[Step, ...]
    rows_of_steps: sparse.csr_array
    taken: sparse.csr_array | None = None

    def __len__(self) -> int:
        return int((self.rows_of_steps if self.taken is None else self.taken).shape[0])

    @cached_property
    def counts(self) -> sparse.csr_array:
        """Sparse, of shape (N, S): how often network n takes step s."""
        if self.taken is None:
            return self.rows_of_steps
        return sparse.csr_array(self.taken @ self.rows_of_steps)

    @classmethod
    def of(cls, networks: Iterable[Mapping[Step, int]]) -> StepTable:
        """A table of networks that are given as counts of their steps."""
        index: dict[Step, int] = {}
        columns: list[int] = []
        values: list[int] = []
        ends = [0]
        for network in networks:
            columns += [index.setdefault(step, len(index)) for step in network]
            values += network.values()
            ends.append(len(columns))
        shape = len(ends) - 1, len(index)
        return cls(tuple(index), sparse.csr_array((np.array(values, float), columns, ends), shape))

    @classmethod
    def of_workloads(cls, workloads: Sequence[Workload]) -> StepTable:
        """A table of networks as they are deployed: without what an export folds away."""
        return cls.of(
            Counter(Step.of(op, each) for op in each.operators if not op.folded)
            for each in workloads
        )

    def per_image(self, batch: int) -> StepTable:
        """The same networks at batch 1, given what they are at some batch."""
        return replace(self, steps=tuple(step.per_image(batch) for step in self.steps))

    @classmethod
    def of_parts(cls, assembly: Assembly) -> StepTable:
        """A table of networks that are put together of parts."""
        return PartTable.of(assembly.parts).networks(assembly.chosen)

    @classmethod
    def stacked(cls, tables: Sequence[StepTable]) -> StepTable:
        """The networks of several tables, one below the other."""
        return cls.of(network for table in tables for network in table._networks())

    def _networks(self) -> Iterable[Mapping[Step, int]]:
        for start, end in zip(self.counts.indptr[:-1], self.counts.indptr[1:], strict=True):
            columns, values = self.counts.indices[start:end], self.counts.data[start:end]
            yield {self.steps[i]: int(count) for i, count in zip(columns, values, strict=True)}

    def to_arrays(self) -> dict[str, npt.NDArray[np.int64]]:
        """Integer arrays that hold the whole table; `from_arrays` is the inverse."""
        steps = [(_KINDS.index(step.kind), *astuple(step)[1:]) for step in self.steps]
        return {
            "steps": np.array(steps, dtype=np.int64).reshape(len(steps), -1),
            "counts": self.counts.data.astype(np.int64),
            "taken": self.counts.indices.astype(np.int64),
            "ends": self.counts.indptr.astype(np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.int64]]) -> StepTable:
        """Read a table back.

        Raises:
            ArtifactError: An array is missing or is not what it should be.
        """
        try:
            steps = tuple(
                Step(_KINDS[kind], macs, read, written, weights, kernel, stride, bool(dead))
                for kind, macs, read, written, weights, kernel, stride, dead in arrays[
                    "steps"
                ].tolist()
            )
            counts = arrays["counts"].astype(np.float64), arrays["taken"], arrays["ends"]
            table = sparse.csr_array(counts, (len(arrays["ends"]) - 1, len(steps)))
            table.check_format()
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ArtifactError(f"not a table of steps: {error}") from error
        return cls(steps, table)

    def rows(self, index: npt.NDArray[np.integer]) -> StepTable:
        """Some of the networks, in the order of ``index``."""
        if self.taken is None:
            return replace(self, rows_of_steps=self.rows_of_steps[index])
        return replace(self, taken=self.taken[index])

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sums over the steps of each network.

        Args:
            values: Of shape (S,) or (S, F): a number, or F of them, for each step.

        Returns:
            Of shape (N,) or (N, F).
        """
        sums: npt.NDArray[np.float64] = self.rows_of_steps @ values
        return sums if self.taken is None else self.taken @ sums

    @cached_property
    def macs(self) -> npt.NDArray[np.float64]:
        """Multiply-accumulates of each network, of shape (N,); dead steps count, too."""
        return self.total(np.array([step.macs for step in self.steps], dtype=np.float64))


@dataclass(frozen=True)
class PartTable:
    """The parts that networks are put together of, for all networks that ever are.

    Attributes:
        parts: Every part of every place, one below the other.
        starts: For each place, the row of its first part.
    """

    parts: StepTable
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Sequence[Mapping[Step, int]]]) -> PartTable:
        """For each place in a network, the steps of each part that may stand there."""
        starts = np.cumsum([0, *(len(place) for place in parts)])[:-1].astype(np.int64)
        return cls(StepTable.of(part for place in parts for part in place), starts)

    def networks(self, chosen: npt.NDArray[np.integer]) -> StepTable:
        """N networks, of which ``chosen``, of shape (N, places), says what stands at each place."""
        rows, places = chosen.shape
        ends = np.arange(rows + 1) * places
        columns = (chosen.astype(np.int64) + self.starts).ravel()
        shape = rows, len(self.parts)
        taken = sparse.csr_array((np.ones(rows * places), columns, ends), shape)
        return StepTable(self.parts.steps, self.parts.counts, taken)

    @cached_property
    def deployed(self) -> PartTable:
        """The same parts without what an export folds away: batch normalisations."""
        left = [i for i, step in enumerate(self.parts.steps) if step.kind != "norm"]
        steps = tuple(self.parts.steps[i] for i in left)
        counts = sparse.csr_array(self.parts.counts.tocsc()[:, left])
        return PartTable(StepTable(steps, counts), self.starts)


def counted(table: StepTable) -> dict[str, npt.NDArray[np.int64]]:
    """What workloads count of float32 networks that share no weights among their operators.

    Args:
        table: With batch normalisations.

    Returns:
        ``macs``, ``params`` and ``weight_bytes``, each of shape (N,).
    """
    norms = np.array([step.kind == "norm" for step in table.steps], dtype=bool)
    weights = np.array([step.weight_bytes for step in table.steps], dtype=np.int64)
    params = np.where(norms, weights * _NORM_PARAMS // _NORM_BYTES, weights // _BYTES)
    macs = np.array([step.macs for step in table.steps], dtype=np.int64)
    sums = table.total(np.column_stack([macs, params, weights]).astype(np.float64))
    return dict(zip(("macs", "params", "weight_bytes"), sums.astype(np.int64).T, strict=True))
