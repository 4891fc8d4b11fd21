"""Files of ONNX Runtime Web, which pages get from this machine and from nowhere else."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hwnas.atomic import storage_errors
from hwnas.deploy.bundles.checksums import sha256
from hwnas.errors import ArtifactError, ConfigError, DeviceError
from hwnas.home import home

__all__ = ["PACKAGE", "VERSION", "WASM_FILES", "WEB_FILES", "RuntimeFiles", "runtime_files"]

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
WASM_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
"""Files that running networks in WebAssembly needs."""
WEB_FILES = (
    *WASM_FILES,
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
"""All files that pages need."""
_FETCH_S = 600


@dataclass(frozen=True)
class RuntimeFiles:
    """Files of one version of ONNX Runtime Web.

    Attributes:
        folder: Folder that holds them.
        version: Version of the npm package.
    """

    folder: Path
    version: str

    def path(self, name: str) -> Path | None:
        """Return the path of a file that pages may load; None for any other name."""
        return self.folder / name if name in WEB_FILES else None


def runtime_files(given: Path | None = None) -> RuntimeFiles:
    """Return the files of ONNX Runtime Web.

    Args:
        given: Folder of the unpacked npm package, or its ``dist``; if None, the package is fetched
            by npm once and kept in ``$HWNAS_HOME/web``.

    Raises:
        ConfigError: The given folder does not have the files.
        DeviceError: npm is not installed, or cannot fetch the package.
        ArtifactError: The package is not the expected one.
        StorageError: The files cannot be written.
    """
    if given is not None:
        return _given(given)
    folder = home() / "web" / f"{PACKAGE}-{VERSION}"
    if all((folder / name).is_file() for name in WEB_FILES):
        return RuntimeFiles(folder, VERSION)
    if shutil.which("npm") is None:
        raise DeviceError(
            f"the page needs {PACKAGE} {VERSION}, which npm fetches once, and npm is not "
            "installed; install Node.js, or give the unpacked package by --runtime-files"
        )
    with tempfile.TemporaryDirectory() as work:
        archive = _fetched(Path(work))
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _unpack(archive, folder)
    return RuntimeFiles(folder, VERSION)


def _given(folder: Path) -> RuntimeFiles:
    dist = folder / "dist" if (folder / "dist").is_dir() else folder
    missing = [name for name in WEB_FILES if not (dist / name).is_file()]
    if missing:
        raise ConfigError(
            f"--runtime-files {folder} has no {missing[0]}; give the folder that `npm pack "
            f"{PACKAGE}@{VERSION}` and `tar -x` make"
        )
    try:
        about = json.loads((dist.parent / "package.json").read_text(encoding="utf-8"))
        return RuntimeFiles(dist, str(about["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return RuntimeFiles(dist, "unknown")


def _fetched(folder: Path) -> Path:
    command = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        why = f"it took more than {_FETCH_S} s"
    found = sorted(folder.glob("*.tgz"))
    if not found:
        raise DeviceError(
            f"npm could not fetch {PACKAGE} {VERSION} ({why}); try again, or give the unpacked "
            "package by --runtime-files"
        )
    if sha256(found[0]) != _SHA256:
        raise ArtifactError(f"npm fetched another {PACKAGE} {VERSION} than hwnas was made for")
    return found[0]


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for name in WEB_FILES:
            source = tar.extractfile(f"package/dist/{name}")
            assert source is not None
            temporary = folder / f".{name}.tmp"
            with source, temporary.open("wb") as file:
                shutil.copyfileobj(source, file)
            temporary.replace(folder / name)
