"""Do the images of large folders arrive as fast as they can be decoded, in constant memory?

Photographs of 400 x 300 pixels are stored as JPEG files. In each round, all ways read the same
files on all cores, one after the other: a bare loop in processes that only decode and resize;
hwnas, which fills its cache and then makes training batches from it; PyTorch's DataLoader, Ray Data
and WebDataset (from shards of the files), which decode in each epoch. For memory, hwnas loads
folders of many links to these files and makes an epoch of batches.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from experiments.command import run_command
from experiments.photographs.options import images_of, name_of_images, parser_of
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.search.data.image_archive import read_npz
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.engine.cluster import local_ray
from hwnas.search.training import TrainConfig
from hwnas.search.training.schedule import Schedule

SIZE = 112
_PIXELS = (400, 300)
_QUALITY = 90
_SHARDS = 8
_CLASSES = 2
BATCH = 64
_TRAINING = TrainConfig(epochs=1, batch_size=BATCH, crop=0.4, flip=True, shift_pixels=0)


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0, 1, 2])
    parser.add_argument("--photographs", type=int, default=3000, help="JPEG files of each round")
    parser.add_argument("--counts", type=int, nargs="*", default=[10_000, 200_000], metavar="N")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    config = {
        "images": name_of_images(arguments),
        "photographs": arguments.photographs,
        "pixels": _PIXELS,
        "quality": _QUALITY,
        "size": SIZE,
        "training": _TRAINING.identity,
    }
    answers = Results(arguments.out / "results.jsonl", config)
    with photographs(images_of(arguments), arguments.photographs, arguments.work) as files:
        for seed in arguments.seeds:
            if answers.find("speed_over_bare_loop", "hwnas-decoding", seed) is None:
                print(f"seed {seed}: reading {len(files)} photographs in each way", flush=True)
                answers.put(speeds(files, seed))
            for count in arguments.counts:
                subject = f"{count:,} images"
                if answers.find("held_memory", subject, seed) is None:
                    print(f"seed {seed}: loading {subject}", flush=True)
                    answers.put(memory(files, count, subject, seed))
    print(markdown(answers.rows))


@contextmanager
def photographs(images: Path, count: int, work: Path) -> Iterator[list[Path]]:
    """Write JPEG files of enlarged photographs; yield their paths, and remove them at the end."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        small = read_npz(images, ImageCache(Path(folder, "cache"), 2**30)).images
        files = []
        for number in range(count):
            path = Path(folder, "photographs", str(number % _CLASSES), f"{number:06}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(small[number % len(small)])
            image.resize(_PIXELS, Image.Resampling.BICUBIC).save(path, quality=_QUALITY)
            files.append(path)
        yield files


def speeds(files: Sequence[Path], seed: int) -> list[Row]:
    """Return images per second of each way, and as ratios to the bare loop of the same round."""
    found = {"bare-loop": timed(len(files), lambda: bare_loop(files))}
    folder = files[0].parents[1]
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        loaded: list[ImageData] = []
        found["hwnas-decoding"] = timed(
            len(files), lambda: loaded.append(load(folder, Path(cache), seed))
        )
        images = len(loaded[0].train)
        found["hwnas-batches"] = timed(images, lambda: batches(loaded[0], seed))
    found["dataloader"] = timed(len(files), lambda: loader_epoch(files))
    with local_ray(os.cpu_count() or 1):
        ray_epoch(files[: 2 * BATCH])  # starts Ray's workers
        found["ray-data"] = timed(len(files), lambda: ray_epoch(files))
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        shards = written_shards(files, Path(place))
        found["webdataset"] = timed(len(files), lambda: shard_epoch(shards, len(files)))
    rows = [
        Row("images_per_s", name, seed, speed, "images/s", len(files))
        for name, speed in found.items()
    ]
    return rows + [
        Row("speed_over_bare_loop", name, seed, speed / found["bare-loop"], "ratio", len(files))
        for name, speed in found.items()
        if name != "bare-loop"
    ]


def timed(count: int, work: Callable[[], object]) -> float:
    """Return the images per second of some work on a number of images."""
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def decoded(file: Path | BinaryIO) -> np.ndarray:
    """Decode and resize a photograph, as little as training needs."""
    with Image.open(file) as image:
        small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return np.asarray(small)


def bare_loop(files: Sequence[Path]) -> None:
    """Decode all photographs, an equal share of them in a process for each core."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, multiprocessing.get_context("fork")) as processes:
        list(processes.map(_decode_all, [files[core::cores] for core in range(cores)]))


def _decode_all(files: Sequence[Path]) -> int:
    return sum(int(decoded(path)[0, 0, 0]) for path in files)


def load(folder: Path, cache: Path, seed: int) -> ImageData:
    """Load a folder of photographs as a run does."""
    return load_data(DataConfig(f"folder:{folder}", size=SIZE), folder, seed, cache)


def batches(data: ImageData, seed: int) -> None:
    """Make all batches of an epoch, with augmentation, as one training process does."""
    schedule = Schedule(_TRAINING, data.train, seed)
    for step in range(schedule.steps_per_epoch):
        schedule.batch(step)


class Files(Dataset[torch.Tensor]):
    """Photographs for PyTorch's DataLoader."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(decoded(self._files[index]).copy())


def loader_epoch(files: Sequence[Path]) -> None:
    """Read all photographs in batches by PyTorch's DataLoader, with a process for each core."""
    workers = os.cpu_count() or 1
    for _ in DataLoader(Files(files), batch_size=BATCH, shuffle=True, num_workers=workers):
        pass


def ray_epoch(files: Sequence[Path]) -> None:
    """Read all photographs in batches by Ray Data."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    images = ray.data.read_binary_files([str(file) for file in files])
    pixels = images.map(_decoded_row)
    count = sum(len(batch["image"]) for batch in pixels.iter_batches(batch_size=BATCH))
    assert count == len(files)


def written_shards(files: Sequence[Path], folder: Path) -> list[str]:
    """Write the files into shards in the format of WebDataset, and return their paths."""
    shards = []
    for number in range(_SHARDS):
        shards.append(str(folder / f"{number:06}.tar"))
        with tarfile.open(shards[-1], "w") as shard:
            for file in files[number::_SHARDS]:
                shard.add(file, file.name)
    return shards


def shard_epoch(shards: Sequence[str], count: int) -> None:
    """Read all photographs in batches by WebDataset, with a process for each core."""
    read = webdataset.WebDataset(list(shards), shardshuffle=_SHARDS).shuffle(4 * BATCH)
    images = read.to_tuple("jpg").map_tuple(_decoded_bytes)
    loader = DataLoader(images, batch_size=BATCH, num_workers=os.cpu_count() or 1)
    assert sum(len(batch) for (batch,) in loader) == count


def _decoded_bytes(file: bytes) -> torch.Tensor:
    return torch.from_numpy(decoded(io.BytesIO(file)).copy())


def _decoded_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": decoded(io.BytesIO(row["bytes"]))}


def memory(files: Sequence[Path], count: int, subject: str, seed: int) -> list[Row]:
    """Return the memory of a process that loads so many photographs and makes their batches."""
    folder = files[0].parents[2] / "many"
    try:
        for number in range(count):
            path = folder / str(number % _CLASSES) / f"{number:07}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(files[number % len(files)], path)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            held, peak = process.submit(_memory_of, folder, seed).result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder.parent / "many-cache", ignore_errors=True)
    return [
        Row("held_memory", subject, seed, held, "MB", count),
        Row("peak_resident_memory", subject, seed, peak, "MB", count),
    ]


def _memory_of(folder: Path, seed: int) -> tuple[float, float]:
    """Return the memory in MB that is held after an epoch, and the largest resident memory.

    Resident memory includes unchanged pages of the cache's files, which the system takes back when
    it needs them; held memory (``Private_Dirty`` of Linux) does not.
    """
    data = load(folder, folder.parent / "many-cache", seed)
    batches(data, seed)
    return _megabytes("smaps_rollup", "Private_Dirty"), _megabytes("status", "VmHWM")


def _megabytes(file: str, name: str) -> float:
    """Return a quantity of this process that Linux gives in kB, in MB."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self", file).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1e3


if __name__ == "__main__":
    main()
