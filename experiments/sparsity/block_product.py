"""From which density on is a block-sparse product on a CPU faster than the dense one?

A linear layer of 768 inputs and outputs, 196 tokens, as in a vision transformer: PyTorch's dense
product against its product with a matrix in BSR format, one thread, timed in turn.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch

from experiments.command import run_command
from experiments.in_turn import seconds_in_turn
from experiments.readme_table import crosstab
from experiments.record import Results, Row

WIDTH, TOKENS = 768, 196
DENSITIES = (0.05, 0.1, 0.25, 0.5)
SIDES = (16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.sparsity.block_product", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    settings = {"rounds": arguments.rounds, "width": WIDTH, "tokens": TOKENS}
    answers = Results(arguments.out / "block_product.jsonl", settings)
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        for side in SIDES:
            answers.put([timed(side, each, arguments.rounds, seed) for each in DENSITIES])
    print(crosstab(answers.rows))


def timed(side: int, density: float, rounds: int, seed: int) -> Row:
    """Return how many times as fast as the dense product the block-sparse one is."""
    generator = torch.Generator().manual_seed(seed)
    count = WIDTH // side
    scores = torch.rand(count * count, generator=generator)
    blocks = scores.argsort().argsort().reshape(count, count) < round(density * count * count)
    mask = blocks.repeat_interleave(side, 0).repeat_interleave(side, 1)
    weight = torch.randn(WIDTH, WIDTH, generator=generator) * mask
    inputs = torch.randn(WIDTH, TOKENS, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is in beta
        packed = weight.to_sparse_bsr((side, side))
    torch.testing.assert_close(packed @ inputs, weight @ inputs, atol=1e-3, rtol=1e-3)
    ways = (lambda: weight @ inputs), (lambda: packed @ inputs)
    dense, sparse = seconds_in_turn(ways, rounds)
    subject = f"{100 * density:g}-% block{side}x{side}"
    return Row("times as fast as dense", subject, seed, dense / sparse, "ratio", rounds)


if __name__ == "__main__":
    main()
