"""Workers that train together: what one of them meets, all get to know."""

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
    """What a worker tells the others of an error.

    Attributes:
        reason: Its first line.
        memory: Whether memory ran out.
        error: The error itself, where it is one of ours.
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
    """This worker among those that train together, each of which takes every step with the others.

    Collectives hang or mix up where a worker is missing. So before each of them all workers agree
    that none has failed; one that fails says so at the next such point of the others. They agree by
    the largest of two numbers, the same collective everywhere, so it does not matter which of these
    points the others are at.

    Args:
        rank: Which of the workers this is.
        world: How many there are; alone, there is nothing to agree on.
        device: Where collectives take their tensors.
    """

    def __init__(self, rank: int = 0, world: int = 1, device: torch.device | str = "cpu") -> None:
        self.rank = rank
        self.world = world
        self._device = torch.device(device)

    def agree(self, error: Exception | None = None, value: float = 0.0) -> float:
        """Wait for all workers, and raise in all of them where one has failed.

        Memory that ran out is raised as such only where no worker failed otherwise.

        Args:
            error: What this one failed with. It is raised again, after the others know of it.
            value: At least 0.

        Returns:
            The largest value that a worker gave.
        """
        if self.world == 1 or getattr(error, _AGREED, False):
            if error is not None:
                raise error
            return value
        told = torch.tensor([float(error is not None), value], dtype=torch.float64)
        try:
            told = told.to(self._device)
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
            failed, largest = told.tolist()
            reports = self._reports(error) if failed else []
        except Exception as lost:  # of another worker, which is gone
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
        """The error that this worker stops with; of memory in all of them, or in none."""
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
        """Replace values by their sum over the workers, which have just agreed."""
        if self.world > 1:
            torch.distributed.all_reduce(values)

    def average(self, values: Tensor) -> None:
        """Replace values by their mean over the workers, which have just agreed."""
        if self.world > 1:
            self.add_up(values)
            values /= self.world


def _agreed(error: Exception) -> Exception:
    """Mark an error that all workers know of, without holding on to its traceback."""
    setattr(error, _AGREED, True)
    return error
