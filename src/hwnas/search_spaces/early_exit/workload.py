"""Workload of a network with an early exit: the whole network, and the part up to the exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from hwnas.search_spaces.cost_model.workload import Workload, flag_dead, trace
from hwnas.search_spaces.early_exit.network import EarlyExitNetwork

__all__ = ["EarlyExitWorkload", "early_exit_workload"]


@dataclass(frozen=True)
class EarlyExitWorkload(Workload):
    """Workload of a network that some images leave early.

    Operators, tensors, parameters, sizes and peaks are those of the whole network, which has to be
    loaded. Multiply-accumulates are the mean over images.

    Attributes:
        until_exit: Workload of an image that leaves: up to the exit, with the exit's head.
        share: Share of images that leave, in (0, 1).
    """

    until_exit: Workload
    share: float

    @classmethod
    def of(cls, whole: Workload, at_exit: Sequence[int], share: float) -> EarlyExitWorkload:
        """Return the workload of a network with an exit.

        Args:
            whole: Workload of the whole network.
            at_exit: Ids of the tensors that an image that leaves needs.
            share: Share of images that leave.
        """
        needed = flag_dead(list(whole.operators), set(at_exit))
        operators = tuple(each for each in needed if not each.dead)
        until_exit = replace(whole, operators=operators, outputs=tuple(at_exit))
        return cls(whole.operators, whole.tensors, whole.outputs, whole.params, until_exit, share)

    @cached_property
    def id(self) -> str:
        """Content hash of the whole network, with the share."""
        return f"{super().id}-{self.share:g}"

    @property
    def macs(self) -> int:
        """Mean multiply-accumulates of one inference at the traced batch size."""
        return round(self.share * self.until_exit.macs + (1 - self.share) * super().macs)


class _Paths(nn.Module):
    """Outputs of a network, and outputs and confidence at its exit."""

    def __init__(self, network: EarlyExitNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.network.paths(images)


def early_exit_workload(
    network: EarlyExitNetwork, input_shape: tuple[int, int, int], batch: int = 1
) -> Workload:
    """Return the workload of a network; a plain one if it has no exit.

    Args:
        network: Network, which need not hold weights.
        input_shape: Channels, height and width.
        batch: Images at once.
    """
    head = network.head
    if head is None:
        return trace(network, input_shape, batch)
    found = trace(_Paths(network), input_shape, batch)
    end, *early = found.outputs
    return EarlyExitWorkload.of(replace(found, outputs=(end,)), early, head.share)
