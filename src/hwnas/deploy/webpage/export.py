"""Export of a bundle as a static web page, which classifies pictures in the browser."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from hwnas.atomic import storage_errors
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.runtimes.ort_web_files import WASM_FILES, RuntimeFiles
from hwnas.errors import ArtifactError, ConfigError
from hwnas.hashing import content_hash

__all__ = ["write_web_page"]

_PAGE = "hwnas.deploy.webpage", "page"
_STATIC = ("index.html", "app.js", "pixels.js", "style.css")
_WORKER = "sw.js"
_KINDS = ("class_scores", "label_scores")
_FORMATS = ("fp32", "int8")  # that ONNX Runtime Web runs in WebAssembly


def write_web_page(bundle: Bundle, folder: Path, files: RuntimeFiles) -> Path:
    """Write a page that runs a bundle's network on pictures and on the camera.

    The folder can be served by any web server, from any path. The page loads nothing from elsewhere
    and works offline after the first visit. Its answers are those of `Bundle.run`, since it
    preprocesses pictures in the same way.

    Args:
        bundle: Bundle of a network that gives classes or labels.
        folder: Folder to create; it must not exist, or be empty.
        files: Files of ONNX Runtime Web, which are copied into the folder.

    Returns:
        The page, ``index.html``.

    Raises:
        ConfigError: The folder is not empty, or the network gives neither classes nor labels.
        ArtifactError: The bundle has no file in a format that browsers run.
        StorageError: The folder cannot be written.
    """
    outputs, preprocessing = bundle.outputs, bundle.preprocessing
    if outputs.kind not in _KINDS:
        raise ConfigError(
            f"a web page shows classes and labels, and this network gives {outputs.kind}; use "
            "`hwnas run` or `hwnas serve`"
        )
    if preprocessing.channels not in (1, 3):
        raise ConfigError(
            f"a web page shows grey and colour images, and this network takes "
            f"{preprocessing.channels} channels"
        )
    model = _model_of(bundle)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; give another one")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ort").mkdir()
        shutil.copyfile(model, folder / "model.onnx")
        for name in WASM_FILES:
            shutil.copyfile(files.folder / name, folder / "ort" / name)
        for name in _STATIC:
            _static(name, folder / name)
        about = {
            "id": bundle.description["id"],
            "kind": outputs.kind,
            "labels": list(outputs.labels),
            "preprocessing": {**asdict(preprocessing)},
            "size": bundle.description.get("size", None),
        }
        text = json.dumps(about, indent=1)
        (folder / "network.json").write_text(text, encoding="utf-8")
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        version = content_hash({name: sha256(folder / name) for name in names})
        worker = resources.files(_PAGE[0]).joinpath(_PAGE[1], _WORKER).read_text(encoding="utf-8")
        kept = json.dumps(["./", *names])
        text = worker.replace("__VERSION__", version).replace('"__FILES__"', kept)
        (folder / _WORKER).write_text(text, encoding="utf-8")
    return folder / "index.html"


def _model_of(bundle: Bundle) -> Path:
    """Return the ONNX file that browsers run: the first in fp32, or else in int8."""
    for number_format in _FORMATS:
        for artifact in bundle.artifacts:
            if artifact.number_format == number_format and artifact.file.endswith(".onnx"):
                return bundle.folder / artifact.file
    raise ArtifactError(
        f"{bundle.folder} has no ONNX file in {' or '.join(_FORMATS)}, which browsers run"
    )


def _static(name: str, to: Path) -> None:
    to.write_bytes(resources.files(_PAGE[0]).joinpath(_PAGE[1], name).read_bytes())
