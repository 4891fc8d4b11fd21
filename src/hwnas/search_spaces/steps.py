"""What many networks ask of hardware, as one table: the steps there are, and who takes which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from hwnas.search_spaces.workload import Operator, OperatorKind, Workload

__all__ = ["Step", "StepTable"]


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
class StepTable:
    """Networks as counts of steps. What is additive over steps takes one sparse product.

    Attributes:
        steps: The distinct steps, S of them.
        counts: Sparse, of shape (N, S): how often network n takes step s.
    """

    steps: tuple[Step, ...]
    counts: sparse.csr_array

    def __len__(self) -> int:
        return int(self.counts.shape[0])

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
        """A table of traced networks."""
        return cls.of(Counter(Step.of(op, each) for op in each.operators) for each in workloads)

    @classmethod
    def of_parts(
        cls, parts: Sequence[Sequence[Mapping[Step, int]]], codes: npt.NDArray[np.integer]
    ) -> StepTable:
        """A table of networks that are put together of parts.

        Args:
            parts: For each place in the network, the steps of each part that may stand there.
            codes: Of shape (N, len(parts)): which part stands at each place.
        """
        together = cls.of(part for place in parts for part in place)
        starts = np.cumsum([0, *(len(place) for place in parts)])[:-1]
        rows, places = codes.shape
        ends = np.arange(rows + 1) * places
        chosen = (codes.astype(np.int64) + starts).ravel()
        ones = np.ones(rows * places)
        selection = sparse.csr_array((ones, chosen, ends), (rows, len(together)))
        return cls(together.steps, sparse.csr_array(selection @ together.counts))

    def rows(self, index: npt.NDArray[np.integer]) -> StepTable:
        """Some of the networks, in the order of ``index``."""
        return StepTable(self.steps, self.counts[index])

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sums over the steps of each network.

        Args:
            values: Of shape (S,) or (S, F): a number, or F of them, for each step.

        Returns:
            Of shape (N,) or (N, F).
        """
        sums: npt.NDArray[np.float64] = self.counts @ values
        return sums

    @cached_property
    def macs(self) -> npt.NDArray[np.float64]:
        """Multiply-accumulates of each network, of shape (N,); dead steps count, too."""
        return self.total(np.array([step.macs for step in self.steps], dtype=np.float64))
