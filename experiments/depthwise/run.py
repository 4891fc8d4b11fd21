"""Is our gradient of a depthwise convolution with a large kernel faster than torch's on this CPU?

The forward and backward pass of a layer are timed, ours and the plain convolution interleaved, with
the same weights on the same images, channels-last, for layers of mobile networks for small images.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.search_spaces.layers import DepthwiseConv2d

_ROUND_MS = 50.0
_CHANNELS_AND_SIDES = ((96, 14), (144, 7), (480, 4))
_TIMES_SLOWER = "plain_over_ours"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", type=int, nargs="+", default=[3, 5, 7, 9])
    parser.add_argument("--strides", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20, help="undisturbed rounds per layer")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch")


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"rounds": arguments.rounds, "batch": arguments.batch})
    settings = TimingSettings(3, arguments.rounds, _ROUND_MS, 30.0, max_slowdown=math.inf)
    layers = itertools.product(
        setting.seeds, arguments.threads, arguments.kernels, arguments.strides, _CHANNELS_AND_SIDES
    )
    for seed, threads, kernel, stride, (channels, side) in layers:
        subject = f"k{kernel}-s{stride}-{channels}x{side}x{side}-t{threads}"
        if setting.answers.find(_TIMES_SLOWER, subject, seed) is None:
            print(f"seed {seed}: {subject}", flush=True)
            torch.set_num_threads(threads)
            torch.manual_seed(seed)
            images = torch.randn(arguments.batch, channels, side, side)
            ours = DepthwiseConv2d(channels, kernel, stride)
            setting.answer([compare(ours, images, subject, seed, threads, settings)])
    setting.show()


def compare(
    ours: DepthwiseConv2d,
    images: torch.Tensor,
    subject: str,
    seed: int,
    threads: int,
    settings: TimingSettings,
) -> Row:
    """Return the time of the plain convolution over that of ours, on the CPU clock."""
    plain = copy.deepcopy(ours).eval()  # in eval mode it computes the plain convolution
    watches = [
        LatencyTimer(passes(layer, images), settings, time.process_time, one_thread=threads == 1)
        for layer in (ours, plain)
    ]
    interleave(watches[:1], watches[1:], settings.retries)
    mine, other = (watch.quantiles("cpu") for watch in watches)
    spread = {"ours_p20": mine.p20, "ours_p80": mine.p80}
    spread |= {"plain_p20": other.p20, "plain_p80": other.p80}
    details = {"ours_ms": mine.p50, "plain_ms": other.p50}
    ratio = other.p50 / mine.p50
    return Row(_TIMES_SLOWER, subject, seed, ratio, "ratio", settings.rounds, spread, details)


def passes(layer: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    """Return a function that runs the forward pass, and the backward pass to input and weights."""
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    upstream = torch.ones_like(layer(x))

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x).backward(upstream)

    return run


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options)
