"""Does a model of matrix products improve the latency predictions of networks?

The matrix products of a target were timed. So the time of all linear layers and of all convolutions
except depthwise ones can be modelled as products: pixels x output channels x terms summed per
output. The logarithm of their sum is one more linear part of the kernel. A target's whole family (a
runtime in a format) is held out; ten networks are measured and the others are predicted, with and
without this part.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from experiments.command import run_command
from experiments.gemm.run import FOLDER, TARGETS
from experiments.latency_zoo.zoo import read_workloads, read_zoo
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.plugin import resolve
from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.devices.shipped import family, prior_of_devices
from hwnas.predictors.devices.store import DeviceProfile
from hwnas.predictors.features.blocks import BlockScaling, blocks_of_steps
from hwnas.predictors.metrics.gemm import Gemm
from hwnas.predictors.metrics.gemm_model import GemmModel
from hwnas.predictors.models.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.search_spaces import Workload

PRODUCTS = 200  # products of a target, drawn per seed
SAMPLES = 10
_PRODUCT_KINDS = ("conv", "pointwise", "linear", "matmul")
_NEW_PART = (-2.0, 3.0)  # mean and deviation of the part's log variance, as in the vague prior


@dataclass(frozen=True, eq=False)
class Case:
    """One target as the new one.

    Attributes:
        profile: Measured latencies of the networks on the target.
        plain: Features of the networks, as parts of the kernel.
        prior: Prior over the kernel's hyperparameters.
        workloads: Workloads of the networks.
        timed: Matrix products that were timed on the target.
        products_ms: Their latencies, in ms.
    """

    profile: DeviceProfile
    plain: Parts
    prior: Prior
    workloads: list[Workload]
    timed: list[Gemm]
    products_ms: Numbers


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gemm.as_feature", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "as_feature.jsonl", {"products": PRODUCTS})
    profiles, workloads = read_zoo(), read_workloads()
    for target in arguments.targets:
        case = read_case(target, profiles, workloads)
        for seed in range(arguments.seeds):
            answers.put(judge(case, seed))
    print(crosstab(answers.rows))


def read_case(target: str, profiles: list[DeviceProfile], workloads: list[Workload]) -> Case:
    profile = resolve("target", target, {each.device: each for each in profiles})
    others = [each for each in profiles if family(each.device) != family(target)]
    transfer_prior = prior_of_devices(others)
    products = pq.read_table(FOLDER / "products.parquet", filters=[("target", "=", target)])
    rows = products.to_pylist()
    return Case(
        profile,
        transfer_prior.parts(transfer_prior.see(blocks_of_steps(profile.steps))),
        transfer_prior.prior,
        workloads,
        [Gemm(row["m"], row["n"], row["k"]) for row in rows],
        np.array([row["latency_ms"] for row in rows]),
    )


def products_of(workload: Workload) -> list[Gemm]:
    """Return one product for each operator that can be computed as a matrix product."""
    found = []
    for operator in workload.operators:
        if operator.dead or operator.kind not in _PRODUCT_KINDS:
            continue
        shape = workload.tensors[operator.outputs[0]].shape
        channels = shape[1] if len(shape) > 2 else shape[-1]
        pixels = int(np.prod(shape)) // channels
        found.append(Gemm(pixels, channels, max(operator.macs // (pixels * channels), 1)))
    return found


def judge(case: Case, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    known = rng.choice(len(case.timed), PRODUCTS, replace=False)
    timed = [case.timed[i] for i in known]
    model = GemmModel.fit(case.profile.device, timed, case.products_ms[known])
    seen: dict[Gemm, float] = {}
    needed = [products_of(workload) for workload in case.workloads]
    unseen = [*dict.fromkeys(gemm for some in needed for gemm in some)]
    for gemm, estimate in zip(unseen, model.predict(unseen), strict=True):
        seen[gemm] = estimate.mean
    logs = np.log([[sum(seen[gemm] for gemm in some)] for some in needed])
    added = Parts({**case.plain.linear, "gemm": BlockScaling.over(logs)(logs)}, case.plain.radial)
    place = len(case.plain.linear)
    prior = replace(
        case.prior,
        mean=np.insert(case.prior.mean, place, _NEW_PART[0]),
        std=np.insert(case.prior.std, place, _NEW_PART[1]),
    )
    order = rng.permutation(len(case.profile))
    offered, asked = np.split(order, [len(order) // 2])
    rows = []
    for name, parts, believed in (
        ("without", case.plain, case.prior),
        ("with", added, prior),
    ):
        variances = np.exp(believed.mean)
        chosen = offered[most_informative(parts.rows(offered), variances, SAMPLES)]
        process = Mixture.fitted(parts.rows(chosen), np.log(case.profile.costs[chosen]), believed)
        mean, _ = process.predict(parts.rows(asked))
        true = np.log(case.profile.costs[asked])
        error = 100 * float(np.median(np.abs(np.exp(mean - true) - 1)))
        rank = float(spearmanr(mean, true).statistic)
        subject = f"{case.profile.device} {name}"
        rows.append(Row("network_spearman", subject, seed, rank, "rho", len(asked)))
        rows.append(Row("network_median_ape", subject, seed, error, "%", len(asked)))
    return rows


if __name__ == "__main__":
    main()
