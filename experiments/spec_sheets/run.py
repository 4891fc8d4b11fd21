"""Do spec sheets predict which networks are fast on a device, before anything is measured on it?

Each hardware of HELP's NAS-Bench-201 table is left out in turn, with all its batch sizes. The
prediction mixes the known devices by the similarity of their spec sheets to the new one's.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import spearmanr

from experiments.command import data_folder, run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.predictors.benchmarks.cost_table import CostTable, read_cost_table
from hwnas.predictors.models.cold_start import ColdStart
from hwnas.predictors.models.gaussian_process import Numbers

FOLDER = Path(__file__).parent
POOL = 900  # first rows of the table, known on the known devices; all others are scored


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.spec_sheets.run", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "results.jsonl", {"pool": POOL})
    table = read_cost_table(data_folder() / "latency" / "nasbench201_latency_help.npz")
    sheets = tomllib.loads((FOLDER / "sheets.toml").read_text(encoding="utf-8"))
    found = {device: foretold(table, sheets, device) for device in table.devices}
    for hardware in dict.fromkeys(map(hardware_of, table.devices)):
        own = [scores for device, scores in found.items() if hardware_of(device) == hardware]
        answers.put(_rows(hardware, own))
    answers.put(_rows("all", list(found.values())))
    print(crosstab(answers.rows))


def hardware_of(device: str) -> str:
    """Return the name of a device without its batch size."""
    return re.sub(r"_(1|32|256)$", "", device) if not device.startswith("essential") else device


def described(sheets: dict[str, dict[str, float]], device: str) -> Numbers:
    """Return the logarithms of the numbers of the spec sheet and of the batch size."""
    hardware = hardware_of(device)
    batch = device.removeprefix(hardware).lstrip("_") or "1"
    return np.log([*sheets[hardware].values(), float(batch)])


def foretold(
    table: CostTable, sheets: dict[str, dict[str, float]], new: str
) -> dict[str, dict[str, float]]:
    """Return the scores of both methods on one device."""
    known = [d for d in table.devices if hardware_of(d) != hardware_of(new)]
    columns = [table.column(device) for device in known]
    logs = np.log(table.costs)
    start = ColdStart(
        np.array([described(sheets, device) for device in known]),
        logs[:POOL, columns],
        [hardware_of(device) for device in known],
    )
    asked = np.flatnonzero(table.space.connected(table.codes))
    asked = asked[asked >= POOL]
    true = logs[asked, table.column(new)]
    weights = start.weights(described(sheets, new))
    methods = {
        "sheets": logs[np.ix_(asked, columns)] @ weights,
        "mean": logs[np.ix_(asked, columns)].mean(1),
    }
    return {
        name: {
            "spearman": float(spearmanr(found, true).statistic),
            "median_ape": 100 * float(np.median(np.abs(np.exp(found - true) - 1))),
        }
        for name, found in methods.items()
    }


def _rows(case: str, scores: list[dict[str, dict[str, float]]]) -> list[Row]:
    rows = []
    for method in scores[0]:
        for score, unit in (("spearman", "rho"), ("median_ape", "%")):
            values = [each[method][score] for each in scores]
            spread = {"least": min(values), "most": max(values)}
            subject = f"{case} {method}"
            rows.append(Row(score, subject, 0, fmean(values), unit, len(values), spread))
    return rows


if __name__ == "__main__":
    main()
