"""Which networks fit into 320 KB of memory and 1 MB of flash, and how accurate are they?

One job for each space searches CIFAR-10 within both limits. Its finalists become C code, whose
accuracy, memory and instructions are recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.microcontroller.finalists.run import rows_of
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import of_job
from hwnas.plugin import resolve
from hwnas.stages.finalists.bundles import read_bundles

VALIDATED, ARENA = "validation_accuracy", "arena_kb"
MEMORIES_KB = (320, 128, 64, 32)
CASES = {
    "convolutions": ["space.name=resnet"],
    "low-rank": ["space.name=vit", "space.preset=low-rank"],
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")


def work(arguments: argparse.Namespace) -> None:
    for case in arguments.cases:
        resolve("case", case, CASES)
    setting = Setting(arguments, {"cases": list(CASES)})
    for seed in setting.seeds:
        for case in arguments.cases:
            rows = setting.observed(case, seed) or observe(setting, case, seed)
            setting.observations.put(rows)
            setting.answer(list(within(rows, case, seed)))
    setting.show()


def observe(setting: Setting, case: str, seed: int) -> list[Row]:
    """Run the job of a case, and measure its finalists as C code."""
    run = setting.work / f"{case}-{seed}"
    print(f"{case}, seed {seed}: running the job", flush=True)
    finalists, run_inputs, seconds = of_job(case, setting.experiment(seed, CASES[case]), run)
    rows = [Row("seconds", f"{case} job", seed, seconds, "s", 1)]
    n = len(run_inputs.data.validation)
    rows += [Row(VALIDATED, f"{case} {f.id}", seed, f.validation, "fraction", n) for f in finalists]
    for bundle in read_bundles(run / "bundles").values():
        rows += rows_of(bundle, run_inputs, f"{case} {bundle.architecture.id}", seed)
    return rows


def within(rows: Sequence[Row], case: str, seed: int) -> Iterator[Row]:
    """Yield the rows of the finalist to choose for each amount of memory, by its validation."""
    found = {(row.metric, row.subject): row for row in rows}
    arenas = {subject: row.value for (metric, subject), row in found.items() if metric == ARENA}
    for most_kb in MEMORIES_KB:
        able = [name for name, arena in arenas.items() if arena is not None and arena <= most_kb]
        if not able:
            continue
        best = max(able, key=lambda name: found[VALIDATED, name].value or 0)
        details = {"network": best.removeprefix(f"{case} ")}
        for (metric, subject), row in found.items():
            name, _, form = subject.removeprefix(f"{case} ").partition(" ")
            if name == details["network"]:
                subject = " ".join(filter(None, (case, f"in {most_kb} KB", form)))
                yield Row(metric, subject, seed, row.value, row.unit, row.n, details=details)


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
