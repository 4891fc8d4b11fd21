"""How well does the predictor estimate the latency of unseen networks?

For each seed, some networks chosen for calibration and others drawn at random are timed against
each other in one session. The timed networks are recorded with their architectures, so a new
predictor is scored on the same table without new timing: if the seeds are recorded, the run only
fits the predictor again.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from experiments.foretold import judge
from experiments.setting import Setting, main
from experiments.timed_networks import networks_to_time, timed_rows
from hwnas.deploy import Target
from hwnas.search.objectives.objective import LATENCY
from hwnas.search_spaces import Architecture, SearchSpace

TIMED, UNSEEN = "timed", "unseen"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timed", type=int, default=20, help="networks that the predictor is fitted to"
    )
    parser.add_argument("--unseen", type=int, default=30, help="networks of the test")


def work(arguments: argparse.Namespace) -> None:
    config = {"timed": arguments.timed, "unseen": arguments.unseen}
    setting = Setting(arguments, config)
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        run_inputs = setting.run_inputs(seed)
        space, objectives = run_inputs.space, run_inputs.recipe.objective
        target = Target.parse(
            next(o.target for o in objectives if o.metric == LATENCY and o.target)
        )
        if not rows:
            drawn = draw(space, target, arguments.timed, arguments.unseen, seed)
            rows = timed_rows(space, drawn, target, seed, setting.work / "onnx")
            setting.observations.put(rows)
        known, asked = (
            [row for row in rows if row.details["role"] == role] for role in (TIMED, UNSEEN)
        )
        setting.answer(judge(space, target, known, asked, seed))
    setting.show()


def draw(
    space: SearchSpace, target: Target, timed: int, unseen: int, seed: int
) -> dict[str, list[Architecture]]:
    """Return the networks of the calibration, and other, random networks."""
    chosen = networks_to_time(space, target.name, timed, seed)
    rng = random.Random(f"unseen-{seed}")
    others: dict[Architecture, None] = {}
    while len(others) < unseen:
        architecture = space.sample(rng)
        if architecture not in chosen:
            others[architecture] = None
    return {TIMED: chosen, UNSEEN: list(others)}


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
