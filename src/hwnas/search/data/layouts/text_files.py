"""Text files, as windows of bytes of which a network predicts the next one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts.image_folder import FolderFiles, entries
from hwnas.search.data.manifest import DataManifest, file_state
from hwnas.search.data.raw_images import RawImages, held_out_parts, main_part
from hwnas.search.data.tokens import NO_TOKEN, Tokens

__all__ = ["is_text", "read_text", "text_manifest"]

_LAYOUT = "expected a text file, or a folder of text files, perhaps in train/, val/ and test/"
_ENDINGS = (
    ".txt", ".md", ".rst", ".tex", ".csv", ".json", ".toml", ".yaml", ".yml", ".html", ".css",
    ".py", ".pyi", ".c", ".h", ".cpp", ".js", ".ts", ".java", ".go", ".rs", ".sh",
)  # fmt: skip
_WINDOW = 128
_FEW_FILES = 20  # below, files are divided into runs of windows that stay in one split
_RUNS, _LONGEST_RUN = 40, 16  # least number of runs of enough windows, and their most windows


def is_text(path: Path) -> bool:
    """Return whether a path is a text file, or a folder with no other files, by their names."""
    if not path.is_dir():
        return path.suffix.lower() in _ENDINGS
    _, files = entries(path, _LAYOUT)
    return bool(files) and all(Path(name).suffix.lower() in _ENDINGS for name in files)


def text_manifest(path: Path) -> DataManifest:
    """Return the manifest of all text files, without opening one.

    Raises:
        DataError: The folder has no text files, or parts of an unknown name.
    """
    return _manifest(_parts(path))


def _manifest(parts: Mapping[str, FolderFiles]) -> DataManifest:
    return DataManifest("files", {k: v for files in parts.values() for k, v in files.items()})


def read_text(
    path: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read text in UTF-8 as windows of bytes; the targets are the bytes that follow each.

    A window is an image of one row with a byte in each pixel. Windows of a file follow each other
    without overlap; the last one is filled up. The windows of a file are never divided between
    splits, unless there are fewer than 20 files; then this holds for runs of up to 16 windows.

    Args:
        path: Text file, or folder with text files at any depth, or with those in the parts of
            `held_out_parts`.
        size: Bytes of a window, given as a single number or one row; 128 if None.
        cache: Not used: reading text is fast.
        skip_damaged: Whether to leave out files that are not UTF-8.

    Raises:
        ConfigError: The size has several rows.
        DataError: There is no text, or a file is not UTF-8.
    """
    length, parts = _length(size), _parts(path)
    skipped: list[str] = []
    cut: dict[str, list[Tokens]] = {}
    for part, names in parts.items():
        files = {name: _read(path / name if path.is_dir() else path) for name in names}
        damaged = [name for name, text in files.items() if text is None]
        if damaged and not skip_damaged:
            raise DataError(
                f"{path / damaged[0]} is not text in UTF-8; convert it, remove it, or set "
                "data.skip_damaged = true"
            )
        skipped += damaged
        cut[part] = [_windows(text, length) for text in files.values() if text is not None]
        if not any(map(len, cut[part])):
            raise DataError(f"{path} has no text in its part {part}; {_LAYOUT}")
    arrays = {}
    for part, windows in cut.items():
        together = np.concatenate(windows)  # (N, length + 1)
        arrays[part] = _inputs(together), np.ascontiguousarray(together[:, 1:])
    return RawImages.of_parts(
        arrays,
        manifest=_manifest(parts),
        skipped=tuple(skipped),
        groups=_groups([len(each) for each in cut[main_part(parts)]]),
    )


def _groups(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the group of each window of files with so many windows each."""
    run = max(counts)
    if len(counts) < _FEW_FILES:
        run = min(max(sum(counts) // _RUNS, 1), _LONGEST_RUN)
    names = [(file, place // run) for file, count in enumerate(counts) for place in range(count)]
    return np.unique(names, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _length(size: ImageSize | None) -> int:
    if size is None:
        return _WINDOW
    if size.height not in (1, size.width):
        raise ConfigError(
            f"data.size is {size.height} x {size.width}; for text give one number, the bytes of a "
            "window"
        )
    return size.width


def _inputs(windows: Tokens) -> Tokens:
    """Return the bytes that a network sees, as images (N, 1, T, 1)."""
    seen = windows[:, :-1]
    return np.where(seen == NO_TOKEN, 0, seen).astype(np.uint8)[:, None, :, None]


def _read(file: Path) -> bytes | None:
    """Return the bytes of a file; None if they are not UTF-8."""
    try:
        found = file.read_bytes()
        found.decode()
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from error
    return found


def _windows(text: bytes, length: int) -> Tokens:
    """Return windows (n, length + 1), each of which begins with the last byte of the one before."""
    count = -(-max(len(text) - 1, 0) // length)
    filled = np.full(max(count, 1) * length + 1, NO_TOKEN, dtype=np.uint8)
    filled[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return sliding_window_view(filled, length + 1)[::length][:count]


def _parts(path: Path) -> Mapping[str, FolderFiles]:
    """Return the files by part: ``all``; or ``train``, ``test`` and perhaps ``validation``."""
    if path.is_file():
        return {"all": {path.name: file_state(path)}}
    folders, _ = entries(path, _LAYOUT)
    held_out = held_out_parts(folders) if "train" in folders else {}
    if held_out:
        known = {"train": "train", **held_out}
        return {part: _files(path, name) for part, name in known.items()}
    return {"all": _files(path, "")}


def _files(root: Path, within: str) -> FolderFiles:
    """Return the text files in a folder at any depth, by their path from the root."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(root / within):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix.lower() in _ENDINGS and not name.startswith("."):
                found[file.relative_to(root).as_posix()] = file_state(file)
    if not found:
        raise DataError(
            f"{root / within} has no text files; {_LAYOUT}, with names that end in "
            f"{', '.join(_ENDINGS[:4])} and so on"
        )
    return found
