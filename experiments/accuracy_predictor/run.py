"""How well are accuracies ranked from a few labels, with and without zero-cost features?

For each seed, some networks of a published table are labelled and a thousand others are predicted.
The score is the agreement of their ranking with that of their accuracies (Kendall's tau). The
surrogate of the search is scored with and without features that need no training. So is a small
network after FBNetV3 (Dai et al., CVPR 2021), whose body is pretrained to predict the same features
before it sees a label.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn

from experiments.command import data_folder, run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.predictors.features.blocks import places
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.surrogate import Surrogate
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.guided.posterior import scale_of
from hwnas.search.tables import ObjectiveTable, read_objective_table
from hwnas.search.tables.benchmark import features_of_table
from hwnas.search.tables.hypervolume_metric import Rows
from hwnas.search.tables.table import read_column
from hwnas.search_spaces.tabular import Codes

LABELS = (20, 50, 100)
ASKED = 1000
SCORED = 100
GAINS = {"surrogate": ("free", "codes"), "network": ("network-free", "network")}
_WIDTH = 64
_STEPS, _FIRST_STEPS, _BATCH = 400, 2000, 128


@dataclass(frozen=True)
class Case:
    """Table, with zero-cost data of its networks beyond its encoding.

    Attributes:
        file: Path relative to ``HWNAS_DATA``.
        accuracy: Array of labels.
        counted: Arrays of counts, where the encoding does not determine the networks' operators.
    """

    file: str
    accuracy: str
    counted: tuple[str, ...] = ()


_TOTALS = ("flops", "params")
CASES: Mapping[str, Case] = {
    "nb201-cifar10": Case("nasbench/nasbench201.npz", "cifar10_test_acc200"),
    "nb201-cifar100": Case("nasbench/nasbench201.npz", "cifar100_test_acc200"),
    "ofa": Case("nasbench/ofa_mbv3_w10_imagenet.npz", "top1"),
    "macro": Case("nasbench/nasbench_macro_cifar10.npz", "mean_acc", _TOTALS),
    "channels-resnet": Case("nasbench/channelbench_resnet_cifar10.npz", "mean_acc", _TOTALS),
    "channels-mobilenet": Case("nasbench/channelbench_mobilenet_cifar10.npz", "mean_acc", _TOTALS),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.accuracy_predictor.run", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds is {arguments.seeds}; expected at least 1")
    cases = {name: resolve("case", name, CASES) for name in arguments.cases}
    torch.set_num_threads(1)
    answers = Results(
        arguments.out / "results.jsonl", {"asked": ASKED, "scored": SCORED, "steps": _STEPS}
    )
    for name, case in cases.items():
        known = Known.of(case)
        for seed in range(arguments.seeds):
            if answers.find("tau-100", f"{name} free", seed) is None:
                answers.put(taus(name, known, seed))
                print(f"{name} seed {seed} recorded", flush=True)
        answers.put(gains(answers.rows, name))
    print(crosstab(answers.rows))


@dataclass(frozen=True)
class Known:
    """Networks of a table, with their known features.

    Attributes:
        table: Table with the accuracy as its only objective.
        features: All features that need no training.
    """

    table: ObjectiveTable
    features: SpaceFeatures

    @classmethod
    def of(cls, case: Case) -> Known:
        """Read a table from ``HWNAS_DATA``."""
        path = data_folder() / case.file
        table = read_objective_table([f"{path}:{case.accuracy}:max"])
        features = features_of_table(table, {})
        if case.counted:
            columns = [read_column(f"{path}:{name}:min").values for name in case.counted]
            logs = np.log(np.column_stack(columns))
            features = replace(features, statistics=lambda codes: logs[table.rows_of(codes)])
        return cls(table, features)

    def guessed_scores(self, seed: int) -> SpaceFeatures | None:
        """Return features with scores predicted from those of some networks, or None.

        The result is None if the table has no scores. The prediction stands for a space that is too
        large to score all of its networks.
        """
        if self.features.scores is None:
            return None
        plain = self.without_scores
        codes = self.table.codes
        scored = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(self.table.connected))
        rows = scored[:SCORED]
        parts, asked = plain.parts(codes[rows]), plain.parts(codes)
        columns = [
            Surrogate.fitted(parts, score).predict(asked)[0]
            for score in self.features.scores(codes[rows]).T
        ]
        guessed = np.column_stack(columns)
        return replace(plain, scores=lambda codes: guessed[self.table.rows_of(codes)])

    @property
    def codes_only(self) -> SpaceFeatures:
        """Options of each network only."""
        return replace(self.without_scores, statistics=None)

    @property
    def without_scores(self) -> SpaceFeatures:
        """Options and counted features."""
        return replace(self.features, scores=None)

    def free(self, codes: Codes) -> Numbers:
        """Return the statistics and scores of networks, each column with mean 0 and deviation 1."""
        asked = (self.features.statistics, self.features.scores)
        columns = np.hstack([each(codes) for each in asked if each is not None])
        return np.asarray((columns - columns.mean(0)) / np.maximum(columns.std(0), 1e-9))


def taus(case: str, known: Known, seed: int) -> list[Row]:
    """Return Kendall's tau of every method and number of labels."""
    table = known.table
    order = np.random.default_rng(seed).permutation(np.flatnonzero(table.connected))
    asked = order[-ASKED:]
    kinds = {
        "codes": known.codes_only,
        "statistics": known.without_scores,
        "guessed-scores": known.guessed_scores(seed),
        "free": known.features,
    }
    networks = {name: Network(known, seed, name == "network-free") for name in GAINS["network"]}
    found = []
    for count in LABELS:
        rows = order[:count]
        losses = table.losses[rows, 0]
        targets = scale_of(losses, minimised=False)(losses)
        guesses = {
            **{
                name: learnt(features, table, rows, targets, asked)
                for name, features in kinds.items()
                if features is not None
            },
            **{name: network.guess(rows, targets, asked) for name, network in networks.items()},
        }
        for name, guess in guesses.items():
            tau = kendalltau(guess, table.losses[asked, 0]).statistic
            found.append(Row(f"tau-{count}", f"{case} {name}", seed, float(tau), "tau", ASKED))
    return found


def learnt(
    features: SpaceFeatures, table: ObjectiveTable, rows: Rows, targets: Numbers, asked: Rows
) -> Numbers:
    """Predict with the surrogate of the search, in the scale in which the search learns."""
    surrogate = Surrogate.fitted(features.parts(table.codes[rows]), targets)
    return surrogate.predict(features.parts(table.codes[asked]))[0]


class Network:
    """Perceptron over options, optionally pretrained on zero-cost features.

    Args:
        known: Networks of the table; all may be used before any label is.
        seed: Seed of the weights and batches.
        free: Whether the network is pretrained on zero-cost features.
    """

    def __init__(self, known: Known, seed: int, free: bool) -> None:
        torch.manual_seed(seed)
        options = places(known.table.codes, known.table.space.options)
        self._inputs = torch.from_numpy(options.astype(np.float32))
        self._body = nn.Sequential(
            nn.Linear(options.shape[1], _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU()
        )
        if free:
            statistics = known.free(known.table.codes).astype(np.float32)
            self._learn_first(torch.from_numpy(statistics))
        self._start = {name: value.clone() for name, value in self._body.state_dict().items()}

    def _learn_first(self, statistics: Tensor) -> None:
        model = nn.Sequential(self._body, nn.Linear(_WIDTH, statistics.shape[1]))
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(_FIRST_STEPS):
            batch = torch.randint(len(statistics), (_BATCH,))
            _step(optimiser, nn.functional.mse_loss(model(self._inputs[batch]), statistics[batch]))

    def guess(self, rows: Rows, targets: Numbers, asked: Rows) -> Numbers:
        """Return predictions for some rows after training on labels of others."""
        self._body.load_state_dict(self._start)
        model = nn.Sequential(self._body, nn.Linear(_WIDTH, 1))
        optimiser = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)
        scaled = (targets - targets.mean()) / max(float(targets.std()), 1e-9)
        wanted = torch.from_numpy(scaled.astype(np.float32))[:, None]
        for _ in range(_STEPS):
            _step(optimiser, nn.functional.mse_loss(model(self._inputs[rows]), wanted))
        with torch.no_grad():
            found: Numbers = model(self._inputs[asked])[:, 0].double().numpy()
        return found


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def gains(rows: list[Row], case: str) -> list[Row]:
    """Return the mean difference made by zero-cost features, and the share of seeds with a gain."""
    found = {(row.metric, row.subject, row.seed): row.value for row in rows}
    seeds = sorted({row.seed for row in rows if row.subject == f"{case} free"})
    answers = []
    for name, (after, before) in GAINS.items():
        for count in LABELS:
            pairs = [
                [found[f"tau-{count}", f"{case} {method}", seed] or 0.0 for seed in seeds]
                for method in (after, before)
            ]
            apart = [a - b for a, b in zip(*pairs, strict=True)]
            spread = {"least": min(apart), "most": max(apart)}
            answers += [
                Row(f"gain-{count}", f"{case} {name}", 0, fmean(apart), "tau", len(apart), spread),
                Row(
                    f"seeds-ahead-{count}",
                    f"{case} {name}",
                    0,
                    fmean(each > 0 for each in apart),
                    "ratio",
                    len(apart),
                ),
            ]
    return answers


if __name__ == "__main__":
    main()
