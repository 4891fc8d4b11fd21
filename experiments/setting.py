"""Command line, recipe and recorded results that the experiments share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.command import module_of, run_command
from experiments.configuration import recipe_values
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.experiment import Experiment
from hwnas.recipe import Recipe
from hwnas.search.engine.cluster import local_ray
from hwnas.stages.run_inputs import RunInputs

__all__ = ["Setting", "cores", "main"]

FASHION_MNIST = Path(__file__).parent / "fashion_mnist" / "recipe.toml"


class Setting:
    """Recipe and results of one call of an experiment.

    Args:
        arguments: The parsed command line.
        config: Further settings that change the results.
        overrides: Changes of the experiment itself to the recipe, ``"table.key=value"`` each. The
            command line's ``--set`` is applied after them.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        config: Mapping[str, Any],
        overrides: Sequence[str] = (),
    ) -> None:
        self.seeds: list[int] = arguments.seeds
        self.work: Path = arguments.work
        self._path: Path = arguments.recipe
        self._overrides, self._set = list(overrides), list(arguments.set)
        settings = {"recipe": recipe_values(replace(self.experiment(0).recipe, seed=0)), **config}
        self.answers = Results(arguments.out / "results.jsonl", settings)
        self.observations = Results(arguments.out / "observations.jsonl", settings)

    def experiment(self, seed: int, filled_in: Sequence[str] = ()) -> Experiment:
        """Return the experiment of a seed.

        Args:
            seed: Seed of the recipe.
            filled_in: Values of keys that the recipe leaves open, ``"table.key=value"`` each.
        """
        overrides = [*self._overrides, *filled_in, *self._set, f"seed={seed}"]
        return Experiment.load(self._path, overrides)

    def run_inputs(self, seed: int) -> RunInputs:
        """Return the data, task and space of a seed."""
        experiment = self.experiment(seed)
        return RunInputs.prepare(experiment.recipe, experiment.folder)

    def recipe(self, seed: int) -> Recipe:
        """Return the parsed recipe of a seed."""
        return self.experiment(seed).recipe

    def observed(self, case: str, seed: int) -> list[Row]:
        """Return the recorded observations of a seed whose subjects begin with a case."""
        rows = [row for row in self.observations.rows if row.seed == seed]
        return [row for row in rows if row.subject.startswith(f"{case} ")]

    def answer(self, rows: Sequence[Row]) -> None:
        """Record the rows that answer the experiment's question."""
        self.answers.put(rows)

    def show(self) -> None:
        """Print the answers so far as a table."""
        print(markdown(self.answers.rows))


@contextmanager
def cores(recipe: Recipe) -> Iterator[int]:
    """Start Ray if the recipe wants workers; yield how many networks can be trained in parallel."""
    count = (os.cpu_count() or 1) if recipe.workers else 1
    with local_ray(count) if recipe.workers else nullcontext():
        yield count


def main(
    folder: Path,
    description: str | None,
    work: Callable[[argparse.Namespace], None],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: Path = FASHION_MNIST,
) -> None:
    """Parse the command line of an experiment and run it.

    Args:
        folder: Folder of the experiment; results are recorded there.
        description: Text for ``--help``.
        work: Function that does the experiment.
        add_options: Function that adds the experiment's own options.
        seeds: Default seeds.
        recipe: Default recipe.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module_of(folder)}.run", description=description
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), metavar="N")
    parser.add_argument(
        "--recipe", type=Path, default=recipe, help="recipe with data, task, space and training"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe"
    )
    parser.add_argument("--out", type=Path, default=folder, help="folder for the recorded rows")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs", *module_of(folder).split(".")),
        help="folder for networks and checkpoints; may be deleted afterwards",
    )
    add_options(parser)
    run_command(parser, work)
