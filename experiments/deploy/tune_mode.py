"""What do the three modes of convolution with batch normalisation cost in a training step?

Train mode computes statistics from the batch. Eval mode keeps the statistics, and computes
convolution and normalisation one after the other. Tune mode multiplies the normalisation into the
weights first. The timing of the steps, forward and backward, is interleaved. Memory is the bytes
that the forward pass saves for the backward pass beyond the parameters, counted by storage, not
measured.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn

from experiments.command import run_command
from experiments.deploy.networks import SPACES, untrained
from experiments.readme_table import across
from experiments.record import Results, Row
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.search.training.tune_mode import fixed_statistics

FOLDER = Path(__file__).parent
TRIED = ("mobilenet", "resnet", "simplenet")
MODES = ("train", "eval", "tune")
SETTINGS = TimingSettings(
    warmup=2, rounds=20, round_ms=200.0, max_seconds=60.0, max_slowdown=math.inf
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.tune_mode", description=__doc__
    )
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(TRIED))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    names = ("batch", "threads")
    config = {"experiment": "tune_mode", **{name: vars(arguments)[name] for name in names}}
    results = Results(arguments.out / "tune_mode.jsonl", config)
    for name in arguments.spaces:
        space = SPACES[name]()
        architecture = space.largest()
        for seed in arguments.seeds:
            if results.find("step_ms", f"{name} tune", seed) is None:
                network = untrained(space, architecture, seed)
                images = torch.randn(arguments.batch, *space.input_shape(architecture))
                with fixed_statistics(tuned := copy.deepcopy(network).train()):
                    modes = {
                        "train": copy.deepcopy(network).train(),
                        "eval": network.eval(),
                        "tune": tuned,
                    }
                    results.put(observed(name, modes, images, seed, arguments.threads))
                print(f"{name}, seed {seed}", flush=True)
    print(across([row for row in results.rows if row.unit == "ratio"]))


def observed(
    name: str, modes: Mapping[str, nn.Module], images: Tensor, seed: int, threads: int
) -> list[Row]:
    """Return time and memory of a step in each mode, and their ratios to Eval mode."""
    watches = {
        mode: LatencyTimer(step(network, images), SETTINGS, process_time, one_thread=threads == 1)
        for mode, network in modes.items()
    }
    interleave([], list(watches.values()), SETTINGS.retries)
    times = {mode: watch.quantiles("cpu") for mode, watch in watches.items()}
    kept = {mode: kept_bytes(network, images) for mode, network in modes.items()}
    rows = []
    for mode in MODES:
        spread = {"p20": times[mode].p20, "p80": times[mode].p80}
        n = watches[mode].wanted
        rows += [
            Row("step_ms", f"{name} {mode}", seed, times[mode].p50, "ms", n, spread),
            Row("kept_mb", f"{name} {mode}", seed, kept[mode] / 1e6, "MB", 1),
        ]
        if mode != "eval":
            over = times[mode].p50 / times["eval"].p50
            rows += [
                Row("time", f"{name} {mode} / eval", seed, over, "ratio", n),
                Row("memory", f"{name} {mode} / eval", seed, kept[mode] / kept["eval"], "ratio", 1),
            ]
    return rows


def step(network: nn.Module, images: Tensor) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass."""

    def run() -> None:
        network.zero_grad(set_to_none=True)
        network(images).square().mean().backward()

    return run


def kept_bytes(network: nn.Module, images: Tensor) -> int:
    """Return the bytes that the forward pass saves, each storage once, beyond the parameters."""
    own = {p.untyped_storage().data_ptr() for p in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)  # keeps the storage alive, so that no address is used twice
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node saves would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(images).square().mean()
    return sum(kept.values())


if __name__ == "__main__":
    main()
