"""Does a search for int8 targets rank networks as their quantised files do?

A supernet is trained, and networks of it are scored on validation images in four ways: in single
precision, as a search for int8 does, as the quantised file of a finalist, which is the truth, and
as such a file with ranges from other images.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import scipy.stats

from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.hashing import content_hash
from hwnas.predictors.devices.calibration import drawn_networks
from hwnas.search.data.split import Split
from hwnas.search.evaluation.converted import Executed, converted_file
from hwnas.search.evaluation.evaluate import SupernetEvaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity, recalibrate, score
from hwnas.search.training import SupernetTraining, load_weights, train_supernet
from hwnas.search_spaces import Architecture, Candidate, Supernet
from hwnas.stages.run_inputs import RunInputs

_WAYS = ("fp32", "search", "finalist", "other-images")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=int, default=30, metavar="N")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time of the supernet")


def work(arguments: argparse.Namespace) -> None:
    overrides = [f"train.budget_minutes={arguments.minutes}"]
    setting = Setting(arguments, {"networks": arguments.networks}, overrides)
    for seed in setting.seeds:
        if setting.answers.find("kendall_tau", "search", seed) is None:
            rows = observed(setting, seed, arguments.networks)
            setting.observations.put(rows)
            setting.answer(answers(rows, seed))
    setting.show()


def observed(setting: Setting, seed: int, count: int) -> list[Row]:
    """Return the score of every network in each way, with the seconds that it took."""
    print(f"seed {seed}: training a supernet", flush=True)
    i = setting.run_inputs(seed)
    run = content_hash(i.hash, i.recipe.train.identity, seed)
    folder = (setting.work / f"seed-{seed}").absolute()
    training = SupernetTraining(i.space, i.task, i.data, i.recipe.train, seed, run, folder)
    with cores(i.recipe):
        weights = load_weights(train_supernet(training))
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    plain = SupernetEvaluator(i.space, i.task, i.data, arrays)
    rounded = replace(plain, number_format="int8")
    supernet = i.space.supernet()
    supernet.shared.load_state_dict(weights)
    rows, others = [], i.data.train.first(len(i.data.train) // 2)
    print(f"seed {seed}: scoring {count} networks", flush=True)
    for network in drawn_networks(i.space, seed, count - 2):
        one = Candidate.of(network)
        ways: Sequence[Callable[[], Evaluation]] = (
            lambda one=one: plain.evaluate(one, Fidelity()),
            lambda one=one: rounded.evaluate(one, Fidelity()),
            lambda network=network: as_finalist(i, supernet, network, i.data.train),
            lambda network=network: as_finalist(i, supernet, network, others),
        )
        for way, scored in zip(_WAYS, ways, strict=True):
            begun = time.perf_counter()
            found = scored()
            seconds = time.perf_counter() - begun
            rows.append(
                Row("accuracy", f"{way} {network.id}", seed, found.values["accuracy"], "fraction",
                    found.n, details={"way": way, "seconds": seconds})
            )  # fmt: skip
    return rows


def as_finalist(
    i: RunInputs, supernet: Supernet, network: Architecture, images: Split
) -> Evaluation:
    """Return the score of a network as a file that is quantised with ranges from some images."""
    module, shape = supernet.extract(network), i.space.input_shape(network)
    recalibrate(module, i.task, i.data.train.first(512), shape)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "network.onnx")
        export_onnx(module, shape, file, traceable=i.space.traceable)
        int8 = converted_file(file, "int8", images, i.task.preprocessing.at(*shape[1:]))
        return score(Executed(int8), i.task, i.data.validation, shape, "validation")


def answers(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return how well two scores rank networks and match the truth, and what they cost."""
    accuracy, seconds = (
        {
            way: np.array([value(row) for row in rows if row.details["way"] == way], dtype=float)
            for way in _WAYS
        }
        for value in (lambda row: row.value, lambda row: row.details["seconds"])
    )
    truth, n = accuracy["finalist"], len(accuracy["finalist"])
    found = []
    for way in ("search", "fp32", "other-images"):
        tau = float(scipy.stats.kendalltau(accuracy[way], truth).statistic)
        found.append(Row("kendall_tau", way, seed, tau, "ratio", n))
        error = fmean(np.abs(accuracy[way] - truth))
        found.append(Row("mean_absolute_error", way, seed, error, "fraction", n))
    lost = accuracy["fp32"] - truth
    found.append(Row("accuracy_lost", "mean", seed, fmean(lost), "fraction", n))
    found.append(Row("accuracy_lost", "most", seed, float(lost.max()), "fraction", n))
    for way in ("search", "finalist"):
        cost = median(seconds[way] / seconds["fp32"])
        found.append(Row("time_over_fp32", way, seed, cost, "ratio", n))
    return found


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
