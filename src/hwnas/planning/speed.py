"""How fast networks train on this machine, measured in seconds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hwnas.search.image_cache import Images
from hwnas.search.threads import torch_threads
from hwnas.search.training.augment import Augmentation
from hwnas.search_spaces import Architecture, SearchSpace, UnionSpace

__all__ = ["Precision", "Rates", "Speed", "measure_speeds", "probes"]

Numbers = npt.NDArray[np.float64]
Precision = Literal["fp32", "bf16"]

_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
_DRAWN = 50  # networks that the one of middle size is taken from
_CROP = 0.4  # least area
_ROUNDING = 1e-6
_WARM_UP = 1  # steps that are not counted: the first chooses algorithms


@dataclass(frozen=True)
class Speed:
    """How fast a network trains on one core.

    Attributes:
        network: Which.
        macs: Its multiply-accumulates for an image.
        precision: Of forward passes.
        images_per_s: At its full resolution, with random crops.
        family: Which kind of network; one line of speed over size goes through each.
    """

    network: Architecture
    macs: int
    precision: Precision
    images_per_s: float
    family: str = ""


@dataclass(frozen=True)
class Rates:
    """Seconds that an image takes in training, by the size of a network.

    Attributes:
        families: Of each kind of network, logarithms of multiply-accumulates, rising, and of
            seconds for an image.
    """

    families: tuple[tuple[Numbers, Numbers], ...]

    @classmethod
    def of(cls, speeds: Sequence[Speed]) -> Rates:
        """On lines between what was measured; networks of one precision."""
        families = []
        for family in dict.fromkeys(speed.family for speed in speeds):
            own = sorted((s for s in speeds if s.family == family), key=lambda s: s.macs)
            sizes = np.array([speed.macs for speed in own], dtype=float)
            seconds = -np.log([speed.images_per_s for speed in own])
            # A larger network is not faster; where noise says so, it counts as equally fast.
            families.append((np.log(sizes), np.maximum.accumulate(seconds)))
        return cls(tuple(families))

    @property
    def sizes(self) -> tuple[float, float]:
        """Multiply-accumulates of the smallest network and of the largest."""
        ends = [(sizes[0], sizes[-1]) for sizes, _ in self.families]
        return math.exp(min(low for low, _ in ends)), math.exp(max(high for _, high in ends))

    def seconds(self, macs: float) -> tuple[float, float]:
        """Return seconds for an image of a network of a size: on average over kinds, and at most.

        Args:
            macs: Multiply-accumulates; of the kinds those count that have networks of this size.
        """
        size = math.log(macs)
        able = [
            family
            for family in self.families
            if family[0][0] - _ROUNDING <= size <= family[0][-1] + _ROUNDING
        ]
        found = [math.exp(np.interp(size, *family)) for family in able or self.families]
        return sum(found) / len(found), max(found)


def probes(space: SearchSpace) -> dict[Architecture, str]:
    """Return networks of several sizes, each with its kind.

    They are the smallest of each kind and the largest, and one of middle size if there is one kind.
    """
    if isinstance(space, UnionSpace):
        return {
            space.of_member(label, end): label
            for label, member in space.members.items()
            for end in (member.smallest(), member.largest())
        }
    ends = [space.smallest(), space.largest()]
    low, high = (math.log(max(1, space.workload(end).macs)) for end in ends)
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(_DRAWN)]

    def off(architecture: Architecture) -> float:
        return abs(math.log(max(1, space.workload(architecture).macs)) - (low + high) / 2)

    return dict.fromkeys([ends[0], min(drawn, key=off), ends[1]], "")


def measure_speeds(
    space: SearchSpace,
    networks: Mapping[Architecture, str],
    images: Images,
    seconds: float = 10.0,
) -> list[Speed]:
    """Train networks for a moment each, in each precision, on one core.

    Args:
        space: Of the networks.
        networks: Which, each with its kind.
        images: Those of a step, (N, H, W, C) uint8.
        seconds: For all of them together; a step is always finished.

    Returns:
        For each network one speed for each precision.
    """
    each = seconds / (len(networks) * len(_PRECISIONS))
    return [
        Speed(
            network,
            space.workload(network).macs,
            precision,
            _images_per_s(space, network, precision, images, each),
            family,
        )
        for network, family in networks.items()
        for precision in _PRECISIONS
    ]


def _images_per_s(
    space: SearchSpace,
    architecture: Architecture,
    precision: Precision,
    images: Images,
    seconds: float,
) -> float:
    network = space.build(architecture)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train()
    size = space.input_shape(architecture)[1:]
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    times: list[float] = []
    begun = time.perf_counter()
    with torch_threads(1):
        while len(times) <= _WARM_UP or time.perf_counter() - begun < seconds:
            started = time.process_time()
            _step(network, _augmented(images, size), optimizer, precision)
            times.append(time.process_time() - started)
    return len(images) / min(times[_WARM_UP:])


def _augmented(images: Images, size: tuple[int, int]) -> torch.Tensor:
    """Random crops of images, as floats (N, C, *size)."""
    augment = Augmentation(crop=_CROP, flip=True)
    cropped, _ = augment(images, np.arange(len(images)), np.random.default_rng(0), size)
    return torch.from_numpy(cropped).permute(0, 3, 1, 2).float().div_(255)


def _step(
    network: nn.Module,
    images: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
) -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        outputs = network(images)
    outputs.float().square().mean().backward()
    optimizer.step()
