"""Evaluation of finished networks from Python."""

from __future__ import annotations

from pathlib import Path

from hwnas.api.given_networks import folder_of, source_of
from hwnas.api.run import Network, Run
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.progress import Reporter, make_reporter
from hwnas.stages.deployment.evaluation import NetworkEvaluation, evaluate_network
from hwnas.stages.deployment.model_source import Part

__all__ = ["evaluate"]


def evaluate(
    network: str | Path | Bundle | Run | Network,
    data: str | None = None,
    *,
    split: Part = "test",
    pick: str | None = None,
    reporter: Reporter | None = None,
) -> NetworkEvaluation:
    """Evaluate every file of a network on images with targets, each in its own runtime.

    These are the ONNX files of a bundle and its converted files. Losses are against the network in
    single precision, on the same images. Files that do not run on this machine are listed with the
    reason.

    Args:
        network: Bundle, finalist of a run, run, folder of a bundle or of a run, or ONNX file.
        data: Images, as ``data.source`` of a recipe, or the folder of a run. A run, and a bundle
            inside a run, have their own.
        split: Part of the images: ``"test"``, ``"validation"``, ``"train"``, or ``"all"`` for a
            source without parts of its own, such as new images that no network was trained on. For
            a classifier, there may be few of these, and none of some classes.
        pick: Network of a run: ``"knee"``, ``"fastest"``, ``"most-accurate"`` or an id; the knee if
            None.
        reporter: Reporter of the progress; the standard error if None.

    Raises:
        ConfigError: There are no images, an option is wrong, or the task is unknown.
        DataError: The images do not fit the network.
        ArtifactError: The bundle, or the network in single precision, is damaged.
        RunError: The run is damaged, in use or stale.
    """
    source, own = source_of(network)
    if isinstance(network, Network) and data is not None:  # other images than those of its run
        source, own = folder_of(network), None
    return evaluate_network(source, data, split, reporter or make_reporter(), own or pick)
