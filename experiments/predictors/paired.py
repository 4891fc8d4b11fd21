"""Is the default method better than HELP's on the three devices of both tables, seed by seed?

Both methods get the same half of the pool in each seed. The mean difference of their rank
correlations over seeds is recorded, with its 95% confidence interval (Student's t).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import t as student_t

from experiments.command import run_command
from experiments.predictors.run import bench
from experiments.predictors.splits import SPLITS
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.plugin import resolve

RIVALS = ("help", "ridge")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.predictors.paired", description=__doc__
    )
    parser.add_argument("--split", default="nb201-trimmed-20", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    split = resolve("split", arguments.split, SPLITS)
    seeds: int = arguments.seeds
    if seeds < 2:
        raise ConfigError(f"--seeds is {seeds}; an interval needs at least 2")
    answers = Results(arguments.out / "paired.jsonl", {"seeds": seeds})

    def by_seed(method: str) -> np.ndarray:
        rows = bench(split, method, seeds)
        return np.array([fmean(r.spearman for r in rows if r.seed == s) for s in range(seeds)])

    ours = by_seed("default")
    for rival in RIVALS:
        gains = ours - by_seed(rival)
        reach = student_t.ppf(0.975, seeds - 1) * gains.std(ddof=1) / np.sqrt(seeds)
        mean = float(gains.mean())
        spread = {"least": mean - float(reach), "most": mean + float(reach)}
        subject = f"{arguments.split} over {rival}"
        answers.put([Row("spearman_gain", subject, 0, mean, "rho", seeds, spread)])
    print(markdown(answers.rows))


if __name__ == "__main__":
    main()
