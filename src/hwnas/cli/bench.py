"""Commands that benchmark hwnas itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from hwnas.cli.app import MORE, app, out

bench = typer.Typer(help="Benchmarks of hwnas itself.", no_args_is_help=True)
app.add_typer(bench, name="bench", rich_help_panel=MORE)


@bench.command("engine")
def bench_engine(
    trials: Annotated[int, typer.Option(min=1, help="Number of trials")] = 2000,
    choices: Annotated[int, typer.Option(min=1, help="Number of choices in the space")] = 12,
    sampler: Annotated[str, typer.Option(help="Name of the sampler")] = "guided",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows")] = None,
) -> None:
    """Time the search engine itself, with an evaluation that takes no time."""
    from hwnas.atomic import write_json
    from hwnas.search.engine.benchmark import EngineRow, bench_engine

    def show(row: EngineRow) -> None:
        out.print(
            f"{row.trials:6d} trials  {row.ms_per_trial:6.2f} ms  "
            f"{row.cpu_ms_per_trial:6.2f} CPU ms a trial  {row.pss_mb:6.0f} MB"
        )

    rows = bench_engine(trials, choices, sampler, on_row=show)
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])


@bench.command("evolve")
def bench_evolve(
    algorithm: Annotated[
        str, typer.Option(help="Algorithm: nsga2, nsga3, moead or hype")
    ] = "nsga2",
    population: Annotated[int, typer.Option(help="Size of the population")] = 100_000,
    generations: Annotated[
        int, typer.Option(help="Number of generations, including the first")
    ] = 20,
    objectives: Annotated[int, typer.Option(help="Number of objectives of DTLZ2")] = 3,
    device: Annotated[str, typer.Option("--on", help="Device to run on: cpu or cuda")] = "cpu",
    seed: Annotated[int, typer.Option(help="Random seed")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows")] = None,
) -> None:
    """Time evolution on DTLZ2 with 24 variables, and measure its distance to the true front."""
    from hwnas.atomic import write_json
    from hwnas.search.evolution import bench_evolve

    row = bench_evolve(algorithm, population, generations, objectives, device, seed)
    out.print(
        f"{row.algorithm} of {row.population:,} on {row.device}: "
        f"{row.individuals_per_second:,.0f} individuals a second, "
        f"hypervolume {row.hypervolume:.4f}, IGD {row.igd:.4f}"
    )
    if json_file is not None:
        write_json(json_file, [asdict(row)])


@bench.command("predictor")
def bench_predictor(
    table: Annotated[Path, typer.Option(help="An .npz file with costs of networks on devices")],
    train: Annotated[str, typer.Option(help="Known devices, separated by commas")],
    test: Annotated[str, typer.Option(help="Devices to predict for, separated by commas")],
    metric: Annotated[
        Literal["latency", "energy"], typer.Option(help="Cost to predict")
    ] = "latency",
    samples: Annotated[int, typer.Option(help="Number of measurements on each new device")] = 10,
    pool: Annotated[
        int, typer.Option(help="Number of rows, from the first, that may be measured")
    ] = 900,
    protocol: Annotated[
        Literal["trimmed", "full"],
        typer.Option(help="Rows to score: those that HELP scores, or all"),
    ] = "trimmed",
    method: Annotated[str, typer.Option(help="Name of the method")] = "default",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0")] = 5,
    space: Annotated[
        str | None, typer.Option(help="Space of the networks; recognised if not given")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows")] = None,
) -> None:
    """Score a method of predicting costs on devices that were held out."""
    from hwnas.atomic import write_json
    from hwnas.cli.terminal import print_predictor_rows
    from hwnas.predictors.benchmarks.benchmark import bench_predictor
    from hwnas.predictors.benchmarks.cost_table import read_cost_table

    rows = bench_predictor(
        read_cost_table(table, metric, space),
        _listed(train),
        _listed(test),
        method,
        samples,
        pool,
        protocol,
        seeds,
    )
    print_predictor_rows(out, rows)
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])


@bench.command("search")
def bench_search(
    table: Annotated[
        list[str],
        typer.Option(help="FILE:ARRAY[:COLUMN]:max|min, an objective; ARRAY[NAME] is a column"),
    ],
    test_table: Annotated[
        list[str] | None,
        typer.Option(help="As --table, with the values on which the chosen front is scored"),
    ] = None,
    sampler: Annotated[str, typer.Option(help="Name of the sampler")] = "guided",
    evals: Annotated[int, typer.Option(help="Number of evaluations of each search")] = 100,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0")] = 10,
    known: Annotated[
        str | None, typer.Option(help="Array of a cost that is known before evaluation")
    ] = None,
    calibrate: Annotated[
        int | None,
        typer.Option(help="Number of measurements from which costs are predicted instead"),
    ] = None,
    train: Annotated[
        str, typer.Option(help="Known devices for --calibrate, separated by commas")
    ] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows")] = None,
) -> None:
    """Search published tables, and report the share of the true hypervolume that is found."""
    from hwnas.atomic import write_json
    from hwnas.cli.terminal import print_search_rows
    from hwnas.search.tables import (
        Calibration,
        bench_search,
        read_objective_table,
        read_test_table,
    )

    objectives = read_objective_table(table)
    test = read_test_table(objectives, test_table) if test_table else None
    calibration = (
        None if calibrate is None else Calibration.of(objectives, calibrate, _listed(train))
    )

    rows = bench_search(
        objectives, sampler, evals, seeds, test=test, known=known, calibration=calibration
    )
    print_search_rows(out, rows)
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
