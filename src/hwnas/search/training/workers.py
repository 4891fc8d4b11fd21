"""Agreement of training workers on errors and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from hwnas.errors import HwnasError, WorkerError
from hwnas.search.training.memory import ran_out_of_memory

__all__ = ["Workers"]

_AGREED = "_all_workers_know"


@dataclass(frozen=True)
class _Report:
    """Report of a worker's error to the others.

    Attributes:
        reason: First line of the error's message.
        memory: True if memory ran out.
        error: Error itself if it is an hwnas error, else None.
    """

    reason: str
    memory: bool
    error: HwnasError | None

    @classmethod
    def of(cls, error: BaseException) -> _Report:
        said = str(error).strip().splitlines()
        ours = error if isinstance(error, HwnasError) else None
        memory = ours is None and ran_out_of_memory(error)
        return cls(said[0] if said else type(error).__name__, memory, ours)


class Workers:
    """One of the workers that train together and take every step at the same time.

    Collective operations hang or mix up if a worker is missing. All workers therefore agree before
    each collective that none has failed. A worker that fails calls `agree` with its error, which
    meets the next `agree` of the others. Every agreement is the same collective, the maximum of two
    numbers, so it does not matter which of these points the others have reached.

    Args:
        rank: Rank of this worker.
        world: Number of workers; a single worker has nothing to agree on.
        device: Device of the tensors in collectives.
    """

    def __init__(self, rank: int = 0, world: int = 1, device: torch.device | str = "cpu") -> None:
        self.rank = rank
        self.world = world
        self._device = torch.device(device)

    def agree(self, error: Exception | None = None, value: float = 0.0) -> float:
        """Wait for all workers, and raise an error in all of them if one has failed.

        An out-of-memory error is raised only if no worker failed for another reason.

        Args:
            error: Error of this worker. It is raised again once the others know of it.
            value: Value of this worker, at least 0.

        Returns:
            The largest value of all workers.
        """
        if self.world == 1 or getattr(error, _AGREED, False):
            if error is not None:
                raise error
            return value
        agreed = torch.tensor([float(error is not None), value], dtype=torch.float64)
        try:
            agreed = agreed.to(self._device)
            torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MAX)
            failed, largest = agreed.tolist()
            reports = self._reports(error) if failed else []
        except Exception as lost:  # another worker is gone
            raise _agreed(error or lost) from None
        if not failed:
            return float(largest)
        raise _agreed(self._verdict(error, reports))

    def _reports(self, error: Exception | None) -> list[_Report | None]:
        reports: list[Any] = [None] * self.world
        own = None if error is None else _Report.of(error)
        torch.distributed.all_gather_object(reports, own)
        return reports

    def _verdict(self, error: Exception | None, reports: list[_Report | None]) -> Exception:
        """Return the error to raise here: an out-of-memory error in all workers, or in none."""
        failed = [(rank, each) for rank, each in enumerate(reports) if each is not None]
        others = [(rank, each) for rank, each in failed if not each.memory]
        own = reports[self.rank]
        if error is not None and own is not None and (own.memory is not bool(others)):
            return error
        rank, report = (others or failed)[0]
        if report.memory:
            return torch.OutOfMemoryError(f"out of memory on worker {rank}: {report.reason}")
        return report.error or WorkerError(f"worker {rank} of the training failed: {report.reason}")

    def add_up(self, values: Tensor) -> None:
        """Replace values by their sum over the workers, which must have just agreed."""
        if self.world > 1:
            torch.distributed.all_reduce(values)

    def average(self, values: Tensor) -> None:
        """Replace values by their mean over the workers, which must have just agreed."""
        if self.world > 1:
            self.add_up(values)
            values /= self.world


def _agreed(error: Exception) -> Exception:
    """Mark an error as known to all workers, without keeping its traceback alive."""
    setattr(error, _AGREED, True)
    return error
