"""Export and interleaved timing of untrained networks of a space: one row for each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.record import Row
from hwnas.deploy import Measurement, Target, export_onnx, measure
from hwnas.predictors import DevicePredictor, Pool, shipped_prior
from hwnas.search.engine.cluster import map_tasks
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["exported", "latency_row", "networks_to_time", "timed_rows"]


def networks_to_time(space: SearchSpace, target: str, count: int, seed: int) -> list[Architecture]:
    """Return the networks that are most informative about a target without measurements."""
    pool = Pool.of(space, seed)
    chosen = pool.most_informative(DevicePredictor(target, shipped_prior()), count)
    return [pool.networks[i] for i in chosen]


def exported(
    space: SearchSpace, networks: Sequence[Architecture], folder: Path, workers: int = 0
) -> dict[str, Path]:
    """Export networks to ONNX and return the files by network id; existing files are reused.

    Args:
        space: Space of the networks.
        networks: Networks to export with random weights; a trained network is no faster.
        folder: Folder for the files.
        workers: Number of parallel exports, if Ray is running.
    """
    models = {network.id: folder / f"{network.id}.onnx" for network in networks}
    missing = [(n, models[n.id]) for n in networks if not models[n.id].exists()]
    for done, _ in enumerate(map_tasks(_export, space, missing, workers), start=1):
        if done % 10 == 0 or done == len(missing):
            print(f"exported {done}/{len(missing)}", flush=True)
    return models


def _export(space: SearchSpace, network: Architecture, path: Path) -> None:
    export_onnx(space.build(network), space.input_shape(network), path)


def timed_rows(
    space: SearchSpace,
    roles: Mapping[str, Sequence[Architecture]],
    target: Target,
    seed: int,
    folder: Path,
) -> list[Row]:
    """Time networks in one session of interleaved rounds.

    Args:
        space: Space of the networks.
        roles: Networks by role.
        target: Target on which they run.
        seed: Seed of the rows.
        folder: Folder for ONNX files.
    """
    networks = [(role, network) for role, some in roles.items() for network in some]
    print(f"seed {seed}: exporting and timing {len(networks)} networks", flush=True)
    models = exported(space, [network for _, network in networks], folder)
    measured = measure(models, target)
    return [
        latency_row(space, network, measured[network.id], seed, {"role": role})
        for role, network in networks
    ]


def latency_row(
    space: SearchSpace,
    network: Architecture,
    measured: Measurement,
    seed: int,
    details: Mapping[str, object],
    prefix: str = "",
) -> Row:
    """Return the latency row of a network, with its architecture.

    The subject is the network's id after the prefix.
    """
    workload = space.workload(network)
    return Row(
        "latency",
        f"{prefix}{network.id}",
        seed,
        measured.latency_ms,
        "ms",
        measured.n,
        {"p20": measured.headline.p20, "p80": measured.headline.p80},
        {
            **details,
            "target": measured.target,
            "clock": measured.clock,
            "wall_ms": measured.wall_ms.p50,
            "anchor_ms": measured.anchor_ms,
            "contended": measured.contended,
            "macs": workload.macs,
            "params": workload.params,
            "architecture": network.to_json(),
        },
    )
