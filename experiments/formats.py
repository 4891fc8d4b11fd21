"""Files of networks in several number formats, each timed and scored on its best target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.record import Row
from experiments.sides import Network, rows_of, tested_on
from hwnas.deploy import Target, measure
from hwnas.search.evaluation.converted import converted_file
from hwnas.stages.run_inputs import RunInputs

__all__ = ["in_formats", "timed_in_formats"]


def in_formats(
    network: Network,
    formats: Sequence[str],
    input_shape: tuple[int, int, int],
    run_inputs: RunInputs,
    folder: Path,
) -> Iterator[Network]:
    """Yield a network as a file in each number format, not scored yet.

    The id of each is the number format, then the id of the network.

    Args:
        network: Network with a file in fp32.
        formats: Number formats.
        input_shape: Channels, height and width that the network takes.
        run_inputs: Task, and training images for the ranges of int8.
        folder: Folder for the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number_format in formats:
        side = network.side.replace(" ", "-")
        file = folder / f"{side}-{number_format}-{network.id}.onnx"
        shutil.copy(network.onnx, file)
        if number_format != "fp32":
            preprocessing = run_inputs.task.preprocessing.at(*input_shape[1:])
            file = converted_file(file, number_format, run_inputs.data.train, preprocessing)
        yield replace(network, id=f"{number_format} {network.id}", onnx=file)


def timed_in_formats(
    files: Sequence[Network],
    targets: Sequence[Target],
    run_inputs: RunInputs,
    seed: int,
) -> list[Row]:
    """Time all files on the targets in their formats, and score each as it runs on its best one.

    Args:
        files: Files of `in_formats`.
        targets: Targets, which take turns with all files in their format.
        run_inputs: Task and images.
        seed: Seed of the rows.
    """
    format_of = {file.subject: file.id.split()[0] for file in files}
    found = {
        target: measure(
            {f.subject: f.onnx for f in files if format_of[f.subject] == target.format}, target
        )
        for target in targets
        if target.format in format_of.values()
    }
    rows = []
    for file in files:
        measured = {t: each[file.subject] for t, each in found.items() if file.subject in each}
        best = min(measured, key=lambda target: measured[target].latency_ms)
        scored = tested_on(file, best, run_inputs)
        rows += rows_of(scored, measured[best], len(run_inputs.data.test), seed)
    return rows
