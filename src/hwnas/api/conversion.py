"""Conversion of bundles to other formats, web pages and model repositories from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hwnas.api.given_networks import opened_bundle
from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.converting import checked_formats, convert_bundle
from hwnas.deploy.bundles.model_repository import write_model_repository
from hwnas.deploy.file_formats.device_limits import DeviceLimits, device_limits
from hwnas.deploy.file_formats.file_format import CodeOptions
from hwnas.deploy.runtimes.ort_web_files import runtime_files as web_files
from hwnas.deploy.webpage import write_web_page
from hwnas.stages.deployment.model_source import images_of_bundle
from hwnas.stages.split_evaluator import check_on_test_images

__all__ = ["convert", "model_repository", "web_page"]


def convert(
    bundle: str | Path | Bundle | Network,
    to: str | Sequence[str],
    *,
    batch: int = 1,
    arena_bytes: int | None = None,
    limits: str | DeviceLimits | None = None,
    name: str | None = None,
    by_rows: bool = False,
    data: str | None = None,
    max_loss: float = 0.01,
) -> Bundle:
    """Add files in further formats to a bundle, and check each where it runs on this machine.

    Args:
        bundle: Bundle, its path, or a finalist of a run, whose bundle is then changed.
        to: Names of file formats, such as ``"mnn"`` or ``["openvino", "torch"]``; ``hwnas plugins``
            lists them.
        batch: Number of images that a run takes, where a format fixes it.
        arena_bytes: Most memory for activations, where a format plans it (``"c"``); unlimited if
            None.
        limits: Device that has to be able to read one of the ONNX files: the name of a release,
            such as ``"tensorrt-8.6"``, a TOML file, or `DeviceLimits`; None for any.
        name: Name of the files in the format ``"c"``, and prefix of all their public names; that of
            the network's file if None.
        by_rows: Whether code in the format ``"c"`` takes the rows of an image one by one, so that
            the image takes no place in the memory for activations.
        data: Images on whose test split, of at most 2,000 images, each file is evaluated where it
            runs here: ``data.source`` of a recipe, or the folder of a run; None for no evaluation.
        max_loss: With ``data``, the largest loss of the first metric against the ONNX file, in the
            metric's unit.

    Returns:
        The bundle with the files; `Bundle.converted` describes them.

    Raises:
        ConfigError: A format is unknown, its converter is not installed, or an option is wrong or
            for other formats.
        DataError: The images do not fit the network.
        ArtifactError: A converter refuses the network, the outputs differ too much, the loss is
            larger than allowed, the activations do not fit, or the device cannot read the network;
            the bundle is unchanged.
        StorageError: The bundle cannot be written.
    """
    device = device_limits(limits)
    formats = [to] if isinstance(to, str) else list(to)
    code = CodeOptions(arena_bytes, name, by_rows)
    opened, check = opened_bundle(bundle), None
    if data is not None:
        checked_formats(formats, batch, code)  # before images are decoded
        found = images_of_bundle(opened, data)
        check = check_on_test_images(found.task, found.data, opened, max_loss)
    return convert_bundle(opened, formats, batch, code, device, check)


def web_page(
    bundle: str | Path | Bundle | Network,
    path: str | Path,
    *,
    runtime_files: str | Path | None = None,
) -> Path:
    """Write a static web page that classifies pictures and what a camera sees with a network.

    The page runs the network in the browser, also offline after the first visit.

    Args:
        bundle: Bundle of a network that gives classes or labels, its path, or a finalist of a run.
        path: Folder to create.
        runtime_files: Unpacked npm package ``onnxruntime-web``; fetched by npm once if None.

    Returns:
        The page, ``index.html``.

    Raises:
        ConfigError: The folder is not empty, or the network gives neither classes nor labels.
        DeviceError: npm is not installed, or cannot fetch the package.
        StorageError: The folder cannot be written.
    """
    files = web_files(None if runtime_files is None else Path(runtime_files))
    return write_web_page(opened_bundle(bundle), Path(path), files)


def model_repository(
    bundle: str | Path | Bundle | Network,
    path: str | Path,
    *,
    name: str | None = None,
    max_batch: int = 8,
    max_wait_ms: float = 2.0,
) -> Path:
    """Add a network to a model repository of Triton Inference Server.

    Args:
        bundle: Bundle, its path, or a finalist of a run.
        path: Model repository, created if it does not exist. A model of the same name is replaced.
        name: Name of the model; the network's id if None.
        max_batch: Largest number of images that the server may run at once.
        max_wait_ms: Longest time that a request waits for others to join it, in milliseconds.

    Returns:
        The model's folder.

    Raises:
        ConfigError: The name or a number is not allowed.
        StorageError: The folder cannot be written.
    """
    opened, folder = opened_bundle(bundle), Path(path)
    return write_model_repository(
        opened, folder, name=name, max_batch=max_batch, max_wait_ms=max_wait_ms
    )
