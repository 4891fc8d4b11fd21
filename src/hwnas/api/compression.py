"""Compression of a network: quantised and sparse variants of it, each evaluated and timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hwnas.api.run import Network, Run
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.variants.sweep import Sweep
from hwnas.progress import Reporter
from hwnas.run_folder import RunFolder
from hwnas.stages.deployment.sweep import SweepOptions, sweep_network

__all__ = ["compress"]


def compress(
    network: str | Path | Bundle | Run | Network,
    target: str | Sequence[str],
    *,
    variants: Sequence[str] = (),
    max_loss: float = 0.01,
    data: str | None = None,
    finetune_minutes: float | None = None,
    path: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Sweep:
    """Make the variants of a network, evaluate and time each, and choose the fastest allowed one.

    Args:
        network: Network of a run, run (its knee), bundle, or the path of a run, a bundle or an ONNX
            file.
        target: Target or device, such as ``"cpu-onnxruntime-b1-t1"``, or several.
        variants: Names of variants, such as ``"int8"``; all that are possible if empty.
        max_loss: Largest loss of the first metric on validation images, in the metric's unit.
        data: Images to calibrate and evaluate on, as ``data.source`` of a recipe; those of the run
            if None.
        finetune_minutes: Fine-tuning time of each variant that is fine-tuned; as for the run's
            finalists if None.
        path: Folder to make: a bundle with the chosen variant first; nothing is written if None.
        reporter: Reporter of the progress.

    Raises:
        ConfigError: A target or a variant is unknown, or a variant lacks what it needs.
        DataError: The images do not fit the network.
        ArtifactError: The network is damaged.
        DeviceError: A target cannot be used on this machine.
        StorageError: ``path`` exists already or cannot be written.
    """
    targets = [target] if isinstance(target, str) else list(target)
    source, pick = _source(network)
    options = SweepOptions(tuple(variants), max_loss, data, pick, finetune_minutes)
    return sweep_network(source, targets, options, path, reporter)


def _source(
    network: str | Path | Bundle | Run | Network,
) -> tuple[Path | RunFolder, str | None]:
    if isinstance(network, Network):
        return network.run.folder, network.id
    if isinstance(network, Run):
        return network.folder, None
    return (network.folder if isinstance(network, Bundle) else Path(network)), None
