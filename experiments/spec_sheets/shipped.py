"""How well does `hwnas predict --spec` predict published devices that are held out?

Each hardware of HELP's tables is left out in turn, at batch 1. The others are known by models of
their latencies, as those that ship. The networks are beyond the first 900 of NAS-Bench-201 and of
FBNet, and all of once-for-all's table, which no model was fitted to. ``--ship`` writes the devices
that ship, with the width of their intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np

from experiments.command import run_command
from experiments.over_cases import mean_over_cases
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.spec_sheets.run import scores_of
from experiments.spec_sheets.tables import POOL, Table, read_table
from hwnas.predictors.devices.published import PublishedDevice, PublishedDevices, write_published
from hwnas.predictors.devices.spec_sheet import SpecSheet
from hwnas.predictors.features.physical import quantities
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.linear_cost import LinearCost
from hwnas.predictors.models.nearest_devices import NearestDevices

FOLDER = Path(__file__).parent
FITTED, UNFITTED = ("nasbench201", "fbnet"), "ofa_mbv3"
SOURCE = (
    "HELP (Lee et al., Hardware-adaptive Efficient Latency Prediction for NAS via Meta-Learning, "
    "NeurIPS 2021), github.com/HayeonLee/HELP, MIT licence; fitted weights, not its measurements"
)
UNITS = {"spearman": "rho", "median_ape": "%", "coverage90": "ratio", "interval_factor": "ratio"}
NEAREST = "nearest-3"
_LEVELS = 100  # quantiles that stand for the errors on a device
Errors = Mapping[str, Mapping[str, tuple[Numbers, Numbers]]]
"""Predicted and true log latencies, by hardware and table."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.spec_sheets.shipped", description=__doc__
    )
    parser.add_argument("--ship", action="store_true", help="write the devices that ship")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "shipped.jsonl", {"pool": POOL, "method": NEAREST})
    tables = {name: read_table(name) for name in (*FITTED, UNFITTED)}
    devices = published({name: tables[name] for name in FITTED})
    predicted = held_out(devices, tables)
    for name in tables:
        answers.put(_rows(name, predicted))
    answers.put(mean_over_cases(answers.rows, {"mean": list(tables)}))
    if arguments.ship:
        every = published(tables)  # the unfitted table has served as a check
        errors = absolute_errors(predicted)
        worst = max(float(np.quantile(each, 0.9)) for each in errors.values())
        largest = np.max([quantities(table.known).max(0) for table in tables.values()], axis=0)
        found = PublishedDevices(
            tuple(every.values()), width_of(errors), worst, tuple(largest.tolist())
        )
        write_published(found, SOURCE)
    print(crosstab(answers.rows))


def published(tables: Mapping[str, Table]) -> dict[str, PublishedDevice]:
    """Return the model of each hardware at batch 1, fitted to the known networks of the tables."""
    specs: dict[str, SpecSheet] = {}
    for table in tables.values():
        specs |= {each.hardware: each.spec for each in table.columns if each.batch == 1}
    found = {}
    for hardware, spec in specs.items():
        pairs = [
            (table.known, table.known_ms[:, i])
            for table in tables.values()
            for i, column in enumerate(table.columns)
            if (column.hardware, column.batch) == (hardware, 1)
        ]
        steps, latencies_ms = zip(*pairs, strict=True)
        found[hardware] = PublishedDevice(spec, LinearCost.fit(steps, latencies_ms))
    return found


def held_out(devices: Mapping[str, PublishedDevice], tables: Mapping[str, Table]) -> Errors:
    """Predict the asked networks of each table on each hardware of it from the other hardware."""
    found: dict[str, dict[str, tuple[Numbers, Numbers]]] = {}
    for name, table in tables.items():
        for i, column in enumerate(table.columns):
            if column.batch != 1:
                continue
            known = [d for hardware, d in devices.items() if hardware != column.hardware]
            nearest = NearestDevices(np.array([d.spec.description for d in known]))
            logs = np.array([d.cost.logs(table.asked) for d in known]).T
            predicted = logs @ nearest.weights(column.spec.description)
            true = np.log(table.asked_ms[:, i])
            found.setdefault(column.hardware, {})[name] = (predicted, true)
    return found


def absolute_errors(predicted: Errors) -> dict[str, Numbers]:
    """Return absolute log errors by hardware: as many quantiles of each, tables alike."""
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    return {
        hardware: np.concatenate([np.quantile(abs(p - t), levels) for p, t in found.values()])
        for hardware, found in predicted.items()
    }


def width_of(errors: Mapping[str, Numbers]) -> float:
    """Return the error that nine in ten on a new device do not exceed, all devices alike.

    Errors on one device are of one piece, so the quantile is that of n observations for n devices:
    0.9 (n + 1) / n, as in split conformal prediction.
    """
    n = len(errors)
    alike = [np.quantile(each, (np.arange(_LEVELS) + 0.5) / _LEVELS) for each in errors.values()]
    return float(np.quantile(np.concatenate(alike), min(0.9 * (n + 1) / n, 1.0)))


def _rows(name: str, predicted: Errors) -> list[Row]:
    """Return the mean scores over the hardware of a table; widths are those of other hardware."""
    errors, found = absolute_errors(predicted), {}
    for hardware, tables in predicted.items():
        if name not in tables:
            continue
        width = width_of({other: each for other, each in errors.items() if other != hardware})
        logs, true = tables[name]
        found[hardware] = {
            **scores_of(logs, true),
            "coverage90": float((abs(logs - true) <= width).mean()),
            "interval_factor": float(np.exp(width)),
        }
    rows = []
    for score, unit in UNITS.items():
        values = {hardware: round(scores[score], 4) for hardware, scores in found.items()}
        spread = {"least": min(values.values()), "most": max(values.values())}
        value, details = fmean(values.values()), {"hardware": values}
        subject = f"{name} {NEAREST}"
        rows.append(Row(score, subject, 0, value, unit, len(values), spread, details))
    return rows


if __name__ == "__main__":
    main()
