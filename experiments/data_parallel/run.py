"""Do workers train as fast together as PyTorch's DistributedDataParallel, and how fast is scoring?

In each round, the workers make the same steps in three ways, one after the other: with hwnas, which
averages all gradients at once after the backward pass; with DistributedDataParallel, which averages
parts of them during it; and each worker alone, without averaging. One worker then scores a network
on validation images. On a machine with GPUs there is one worker for each, else one for each core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from experiments.command import module_of, run_command
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.split import Split
from hwnas.search.evaluation.scoring import score
from hwnas.search.tasks.classification import Classification, classification
from hwnas.search.training import NetworkStep, TrainConfig, TrainingPoint, fit
from hwnas.search.training.optimizers import make_optimizer
from hwnas.search.training.schedule import Schedule
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.mobilenet import mobilenet

_OURS, _DDP, _ALONE = "hwnas", "ddp", "without-averaging"
_WARM_UP = 2
_CLASSES = 10
_SCORED_MACS = 300e6


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        workers: Number of workers that train together.
        gpu: Whether each of them has a GPU.
        preset: Preset of the space `mobilenet`, of which the largest network is trained.
        side: Side of the images, in pixels.
        batch: Images of each worker in a step.
        steps: Timed steps of a way in a round.
        rounds: Number of rounds.
        scored: Number of images to score.
    """

    workers: int
    gpu: bool
    preset: str
    side: int
    batch: int
    steps: int
    rounds: int
    scored: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in ("gpu", "preset") and value < 1:
                raise ConfigError(f"--{name} is {value}; expected at least 1")
        if self.gpu and self.workers > torch.cuda.device_count():
            raise ConfigError(
                f"--workers is {self.workers}, but there are {torch.cuda.device_count()} GPUs; "
                "expected at most one worker for each"
            )


def main() -> None:
    folder, gpus = Path(__file__).parent, torch.cuda.device_count()
    parser = argparse.ArgumentParser(f"python -m {module_of(folder)}.run", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--out", type=Path, default=folder)
    parser.add_argument("--workers", type=int, default=gpus or os.cpu_count() or 1)
    parser.add_argument("--preset", default="large")
    parser.add_argument("--side", type=int, default=224 if gpus else 112, metavar="PIXELS")
    parser.add_argument("--batch", type=int, default=128 if gpus else 16, metavar="IMAGES")
    parser.add_argument("--steps", type=int, default=50 if gpus else 5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scored", type=int, default=50_000 if gpus else 500, metavar="IMAGES")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    given = {name: getattr(arguments, name) for name in Sizes.__annotations__ if name != "gpu"}
    sizes = Sizes(gpu=torch.cuda.is_available(), **given)
    results = Results(arguments.out / "results.jsonl", asdict(sizes))
    for seed in arguments.seeds:
        if results.find("speed_over_ddp", _OURS, seed) is None:
            print(f"seed {seed}: {sizes.workers} workers", flush=True)
            results.put([*_trained(sizes, seed), _scored(sizes, seed)])
    print(markdown(results.rows))


def _trained(sizes: Sizes, seed: int) -> list[Row]:
    """Return the images per second of each way, and the ratios between them."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_worker, (sizes, seed, folder), nprocs=sizes.workers)
        found = json.loads(Path(folder, "seconds.json").read_text(encoding="utf-8"))
    seconds: Mapping[str, list[float]] = found
    images = sizes.workers * sizes.batch
    rows = []
    for way, each in seconds.items():
        details = {"step_seconds": each}
        rows.append(
            Row("images_per_s", way, seed, images / median(each), "images/s", sizes.rounds,
                details=details)
        )  # fmt: skip
    ratios = [d / o for o, d in zip(seconds[_OURS], seconds[_DDP], strict=True)]
    rows.append(Row("speed_over_ddp", _OURS, seed, median(ratios), "ratio", sizes.rounds))
    for way in (_OURS, _DDP):
        waits = [1 - a / w for w, a in zip(seconds[way], seconds[_ALONE], strict=True)]
        rows.append(Row("averaging_share", way, seed, median(waits), "fraction", sizes.rounds))
    return rows


def _worker(rank: int, sizes: Sizes, seed: int, folder: str) -> None:
    """Measure all ways in all rounds; the first worker writes the seconds of a step of each."""
    device = torch.device("cuda", rank) if sizes.gpu else torch.device("cpu")
    if sizes.gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // sizes.workers))
    torch.distributed.init_process_group(
        "nccl" if sizes.gpu else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=sizes.workers,
    )
    trial = _Trial(sizes, seed, device)
    ways: dict[str, Callable[[], float]] = {
        _OURS: lambda: trial.ours(rank, sizes.workers),
        _DDP: lambda: trial.ddp(rank),
        _ALONE: lambda: trial.ours(0, 1),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(sizes.rounds):
        order = list(ways)
        for way in order[number % len(order) :] + order[: number % len(order)]:
            torch.distributed.barrier()
            seconds[way].append(ways[way]())
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class _Trial:
    """Trainings of one network in several ways, all from the same weights and images."""

    def __init__(self, sizes: Sizes, seed: int, device: torch.device) -> None:
        self._sizes, self._seed, self._device = sizes, seed, device
        data, self._task, self._space = _setting(sizes, 4 * sizes.workers * sizes.batch, seed)
        self._split = data.train
        self._shape = self._space.input_shape(self._space.largest())

    def ours(self, rank: int, world: int) -> float:
        """Return the seconds of a step of hwnas, of ``world`` workers."""
        network, points = self._network(), list[TrainingPoint]()
        step = NetworkStep(network, self._task, self._shape)
        config = self._config(world)
        fit(
            *(network, step, self._split, config, self._seed),
            rank=rank,
            world=world,
            on_row=points.append,
        )
        return (points[-1].seconds - points[_WARM_UP - 1].seconds) / self._sizes.steps

    def ddp(self, rank: int) -> float:
        """Return the seconds of a step of DistributedDataParallel."""
        network, sizes = self._network(), self._sizes
        config = self._config(sizes.workers)
        schedule = Schedule(config, self._split, self._seed)
        shared = DistributedDataParallel(network, [rank] if sizes.gpu else None)
        optimizer = make_optimizer(network, config)
        preprocessing = self._task.preprocessing.at(*self._shape[1:])
        network.train()
        started = time.perf_counter()
        for index in range(_WARM_UP + sizes.steps):
            if index == _WARM_UP:
                self._wait()
                started = time.perf_counter()
            batch = schedule.batch(index, rank, sizes.workers).to(self._device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=sizes.gpu):
                outputs = shared(preprocessing(batch.images))
            batch.loss(self._task, outputs.float()).backward()
            optimizer.step()
        self._wait()
        return (time.perf_counter() - started) / sizes.steps

    def _network(self) -> nn.Module:
        torch.manual_seed(self._seed)
        network = self._space.build(self._space.largest())
        return network.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _config(self, world: int) -> TrainConfig:
        sizes = self._sizes
        batch = world * sizes.batch
        return TrainConfig(
            epochs=(_WARM_UP + sizes.steps) / (len(self._split) // batch),
            batch_size=batch,
            learning_rate=1e-3,
            precision="bf16" if sizes.gpu else "fp32",
            flip=True,
            workers=world,
        )

    def _wait(self) -> None:
        if self._sizes.gpu:
            torch.cuda.synchronize()


def _scored(sizes: Sizes, seed: int) -> Row:
    """Return the images per second of scoring a network of about 300 M multiply-accumulates."""
    data, task, space = _setting(sizes, sizes.scored, seed)
    rng = random.Random(seed)
    drawn = [space.sample(rng) for _ in range(200)]
    macs = {each: space.workload(each).macs for each in drawn}
    chosen = min(drawn, key=lambda each: abs(macs[each] - _SCORED_MACS))
    network = space.build(chosen).to("cuda" if sizes.gpu else "cpu")
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = score(network, task, data.train, space.input_shape(chosen), "validation")
    details = {"macs": macs[chosen], "seconds": found.wall_s}
    speed = sizes.scored / found.wall_s
    return Row("images_per_s", "scoring", seed, speed, "images/s", sizes.scored, details=details)


def _setting(
    sizes: Sizes, images: int, seed: int
) -> tuple[ImageData, Classification, MobileNetSpace]:
    """Return a number of random training images, their task, and a space for them."""
    rng, shape = np.random.default_rng(seed), (sizes.side, sizes.side, 3)
    classes = [f"class {number}" for number in range(_CLASSES)]

    def split(count: int) -> Split:
        pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        return Split(pixels, np.arange(count) % _CLASSES, np.arange(count))

    data = ImageData(split(images), split(_CLASSES), split(_CLASSES), tuple(classes))
    return data, classification(data), mobilenet(shape, _CLASSES, sizes.preset)


if __name__ == "__main__":
    main()
