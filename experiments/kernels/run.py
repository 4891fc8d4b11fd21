"""Are our GPU kernels correct, and how fast are they compared with the alternatives?

One visit to a machine with a GPU gives the whole table. Operators are verified, tuned and timed
against PyTorch with cuDNN and against its compiler, all in CUDA graphs of the same kind; then five
whole networks are timed. Rows are recorded as they are found. Recorded results are not measured
again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from experiments.command import run_command
from experiments.readme_table import across
from hwnas.errors import ConfigError
from hwnas.plugin import closest

FOLDER = Path(__file__).parent
STAGES = ("verify", "tune", "operators", "networks")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.kernels.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=480.0, help="time limit for all stages")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="all if not given")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="all five if not given")
    parser.add_argument(
        "--out", type=Path, help="folder for the recorded rows; that of the script if not given"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run on the CPU, with invented times; needs --out",
    )
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    if arguments.dry_run:
        if arguments.out is None:
            raise ConfigError("--dry-run invents times; give it its own folder with --out")
        os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is defined
    folder = (arguments.out or FOLDER).resolve()
    os.environ["HWNAS_HOME"] = str(folder)  # folder of the tuned configurations
    # The parent of forked processes may check for a GPU, but must not open it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # A compiler with its own worker processes would start them again in each of ours.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    from experiments.kernels.place import Place

    place = Place.here(arguments.dry_run)
    try:
        from experiments.kernels.catalogue import BENCHMARKS
        from experiments.kernels.networks import NETWORKS
        from experiments.kernels.stages import run_stages
        from experiments.kernels.visit import Visit

        operators = _known("operator", arguments.operators, list(BENCHMARKS))
        networks = _known("network", arguments.networks, list(NETWORKS))
        end = began + arguments.seconds
        visit = Visit(place, folder, arguments.stages, operators, networks, end)
        run_stages(visit)
        print(across(visit.answers.rows))
    finally:
        shutil.rmtree(place.work, ignore_errors=True)


def _known(kind: str, names: list[str] | None, known: list[str]) -> list[str]:
    """Return the requested names, or all.

    Raises:
        ConfigError: A name is not known.
    """
    for name in names or ():
        if name not in known:
            raise ConfigError(f"unknown {kind} {name!r}; {closest(name, known)}")
    return names or known


if __name__ == "__main__":
    main()
