"""How well do zero-cost proxies rank networks, compared with counts, which cost even less?

For each seed, networks of NAS-Bench-201 are drawn, built with new weights and scored on random
images. Their ranking is compared with that of their published accuracy on CIFAR-100's test images.
The metric `published` compares with naswot and log synflow as FreeREA's authors computed them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from experiments.command import data_folder, run_command
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.errors import ConfigError, DataError
from hwnas.predictors.features.zero_cost import proxies_of
from hwnas.search_spaces import CellSpace

CLASSES = 100
PUBLISHED = {"naswot": "naswot", "synflow": "log_synflow"}


@dataclass(frozen=True)
class Network:
    """Row of the published table.

    Attributes:
        codes: Operations of the network, as codes.
        accuracy: Accuracy on the test images of CIFAR-100 after 200 epochs, in percent.
        counts: Numbers that are known without building the network.
        published: Scores that others computed.
    """

    codes: tuple[int, ...]
    accuracy: float
    counts: dict[str, float]
    published: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.zero_cost.run", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "results.jsonl", {"networks": arguments.networks})
    table = read_networks(data_folder() / "latency")
    if not 3 <= arguments.networks <= len(table):
        raise ConfigError(f"--networks is {arguments.networks}; expected 3 to {len(table)}")
    for seed in arguments.seeds:
        if answers.find("spearman", "params", seed) is None:
            answers.put(scored(random.Random(seed).sample(table, arguments.networks), seed))
            print(f"seed {seed} recorded", flush=True)
    print(markdown(answers.rows))


def read_networks(folder: Path) -> list[Network]:
    """Return all networks of the table, in its order."""
    try:
        with gzip.open(folder / "nasbench201_archs.csv.gz", "rt") as file:
            rows = list(csv.DictReader(file))
        with np.load(folder / "nasbench201_zcp.npz") as scores:
            columns, known = scores["columns"].tolist(), scores["cifar100"]
    except OSError as error:
        raise DataError(f"cannot read NAS-Bench-201 in {folder}: {error}") from error
    return [
        Network(
            tuple(int(row[f"op{edge}"]) for edge in range(6)),
            float(row["c100_test_acc"]),
            {"macs": float(row["flops_m"]), "params": float(row["params_m"])},
            {ours: float(scores[columns.index(name)]) for ours, name in PUBLISHED.items()},
        )
        for row, scores in zip(rows, known, strict=True)
    ]


def scored(networks: list[Network], seed: int) -> list[Row]:
    """Return the rank correlations of all scores over some networks."""
    space = CellSpace(outputs=CLASSES)
    found = [
        {**proxies_of(space, space.architecture_of(n.codes), seed).as_dict(), **n.counts}
        for n in networks
    ]

    def row(metric: str, subject: str, truth: list[float]) -> Row:
        rho = spearmanr([scores[subject] for scores in found], truth).statistic
        return Row(metric, subject, seed, float(rho), "rho", len(networks))

    accuracies = [n.accuracy for n in networks]
    agreement = [
        row("published", name, [n.published[name] for n in networks]) for name in PUBLISHED
    ]
    return [*agreement, *(row("spearman", name, accuracies) for name in found[0])]


if __name__ == "__main__":
    main()
