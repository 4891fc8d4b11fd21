"""Training speed of networks on this machine, measured within seconds."""

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

from hwnas.search.data.image_cache import Images
from hwnas.search.engine.threads import torch_threads
from hwnas.search.training.augment import Augmentation
from hwnas.search_spaces import Architecture, SearchSpace, UnionSpace

__all__ = ["Precision", "TrainingRates", "TrainingSpeed", "measure_speeds", "probes"]

Numbers = npt.NDArray[np.float64]
Precision = Literal["fp32", "bf16"]

_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
_DRAWN = 50  # random networks, of which the one of middle size is used
_CROP = 0.4  # least area of a random crop
_ROUNDING = 1e-6
_FAR_SLOWER = 2.0
_WARM_UP = 1  # steps that are not counted: the first chooses algorithms


@dataclass(frozen=True)
class TrainingSpeed:
    """Training speed of one network, alone on one core or on a GPU.

    Attributes:
        network: Architecture that was timed.
        macs: Multiply-accumulates of the network for one image.
        precision: Number format of forward passes.
        images_per_s: Images per second at full resolution, with random crops.
        family: Kind of the network; speed is interpolated over size within one kind.
    """

    network: Architecture
    macs: int
    precision: Precision
    images_per_s: float
    family: str = ""


@dataclass(frozen=True)
class TrainingRates:
    """Training time per image, in seconds, as a function of the size of a network.

    Between two measured networks of one kind, the time is linear in multiply-accumulates: a step
    takes a fixed time for its images and its calls, and time for its arithmetic.

    Attributes:
        families: Multiply-accumulates, rising, and seconds per image, for each kind of network.
    """

    families: tuple[tuple[Numbers, Numbers], ...]

    @classmethod
    def of(cls, speeds: Sequence[TrainingSpeed]) -> TrainingRates:
        """Interpolate between measured speeds, all in the same precision."""
        families = []
        for family in dict.fromkeys(speed.family for speed in speeds):
            own = sorted((s for s in speeds if s.family == family), key=lambda s: s.macs)
            sizes = np.array([speed.macs for speed in own], dtype=float)
            seconds = np.array([1 / speed.images_per_s for speed in own])
            # A larger network is never faster; one that noise makes faster counts as equally fast.
            families.append((sizes, np.maximum.accumulate(seconds)))
        return cls(tuple(families))

    @property
    def sizes(self) -> tuple[float, float]:
        """Multiply-accumulates of the smallest and of the largest network."""
        ends = [(sizes[0], sizes[-1]) for sizes, _ in self.families]
        return float(min(low for low, _ in ends)), float(max(high for _, high in ends))

    def scaled(self, factor: float) -> TrainingRates:
        """Return the rates with all seconds multiplied by a factor."""
        return TrainingRates(tuple((sizes, factor * seconds) for sizes, seconds in self.families))

    def seconds(self, macs: float) -> tuple[float, float]:
        """Return seconds per image for a size of network: the mean over kinds, and the maximum.

        Args:
            macs: Multiply-accumulates; kinds without networks of this size are left out.
        """
        able = [
            family
            for family in self.families
            if family[0][0] * (1 - _ROUNDING) <= macs <= family[0][-1] * (1 + _ROUNDING)
        ]
        found = [float(np.interp(macs, *family)) for family in able or self.families]
        return sum(found) / len(found), max(found)


def probes(space: SearchSpace) -> dict[Architecture, str]:
    """Return the smallest and the largest network of each kind, with the name of the kind.

    A space of a single kind adds one network of middle size.
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
    seconds: float,
    device: torch.device | str = "cpu",
) -> list[TrainingSpeed]:
    """Train each network briefly in each precision, on one core or on a GPU.

    On processors that emulate bf16, a step in bf16 takes up to ten times as long. Larger networks
    are not timed in a precision that is far slower than fp32 for a smaller network.

    Args:
        space: Space that builds the networks.
        networks: Networks to time, each with its kind.
        images: Images of one step, (N, H, W, C) uint8.
        seconds: Time for all networks together; a step is always finished.
        device: Device that the networks are trained on.

    Returns:
        One speed for each network and timed precision, the smallest network first.
    """
    each = seconds / (len(networks) * len(_PRECISIONS))
    macs = {network: space.workload(network).macs for network in networks}
    hopeless: set[Precision] = set()
    found = []
    for network in sorted(networks, key=macs.__getitem__):
        fp32 = 0.0
        for precision in _PRECISIONS:
            if precision in hopeless:
                continue
            speed = _images_per_s(space, network, precision, images, each, torch.device(device))
            found.append(TrainingSpeed(network, macs[network], precision, speed, networks[network]))
            fp32 = fp32 or speed
            if speed < fp32 / _FAR_SLOWER:
                hopeless.add(precision)
    return found


def _images_per_s(
    space: SearchSpace,
    architecture: Architecture,
    precision: Precision,
    images: Images,
    seconds: float,
    device: torch.device,
) -> float:
    network = space.build(architecture)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train()
    size = space.input_shape(architecture)[1:]
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    times: list[float] = []
    clock = time.process_time if device.type == "cpu" else _time_when_done
    begun = time.perf_counter()
    with torch_threads(1):
        while len(times) <= _WARM_UP or time.perf_counter() - begun < seconds:
            started = clock()
            _step(network, _augmented(images, size).to(device), optimizer, precision)
            times.append(clock() - started)
    return len(images) / min(times[_WARM_UP:])


def _time_when_done() -> float:
    """Return the wall time once the GPU has finished, in seconds."""
    torch.accelerator.synchronize()
    return time.perf_counter()


def _augmented(images: Images, size: tuple[int, int]) -> torch.Tensor:
    """Return random crops of images, as floats of shape (N, C, *size)."""
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
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        outputs = network(images)
    outputs.float().square().mean().backward()
    optimizer.step()
