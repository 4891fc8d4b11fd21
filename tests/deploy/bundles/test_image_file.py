"""Images of every depth, kind and orientation become the same pixels."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image

from hwnas.deploy.bundles.image_file import (
    highest_value,
    is_grey,
    read_pixels,
    upright_pixels,
    upright_size,
)
from hwnas.errors import DamagedImage, DataError

RAMP = np.linspace(0, 65535, 256).astype(np.uint16)[np.newaxis].repeat(4, 0)
"""From black to white, one step of 8 bits a column; (4, 256)."""

EXPECTED = np.arange(256)[np.newaxis].repeat(4, 0)


def png(pixels: NDArray[np.uint16], colour_type: int) -> bytes:
    """Return a PNG with 16 bits per channel, which Pillow does not write in colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(rows: bytes, bits: int, black: int = 0) -> bytes:
    """Return a grey TIFF of 256 x 4 pixels; ``black`` is 0, or 1 if the value 0 is white."""
    tags = [
        (256, 4, 256), (257, 4, 4), (258, 3, bits), (259, 3, 1), (262, 3, 1 - black), (273, 4, 8),
        (277, 3, 1), (278, 4, 4), (279, 4, len(rows)), (339, 3, 1),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(rows))
    return head + rows + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)


def twelve_bits() -> bytes:
    row = bytearray()
    for one, two in np.linspace(0, 4095, 256).astype(int).reshape(-1, 2).tolist():
        row += bytes([one >> 4, (one & 15) << 4 | two >> 8, two & 255])
    return tiff(bytes(row) * 4, 12)


@pytest.mark.parametrize("ending", ["png", "tif", "pgm", "jp2"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_read_pixels_scales_16_bit_grey_images_to_8_bits(
    tmp_path: Path, ending: str, channels: int
) -> None:
    Image.fromarray(RAMP).save(tmp_path / f"ramp.{ending}")
    pixels = read_pixels(tmp_path / f"ramp.{ending}", channels)
    assert pixels.shape == (4, 256, channels)
    assert (pixels[..., 0] == EXPECTED).all()


@pytest.mark.parametrize(
    ("content", "channels"),
    [
        (png(RAMP[..., np.newaxis].repeat(3, 2), 2), 3),
        (png(RAMP[..., np.newaxis].repeat(3, 2), 2), 1),
        (png(np.stack([RAMP, np.full_like(RAMP, 65535)], 2), 4), 3),
        (png(np.stack([RAMP, RAMP, RAMP, np.full_like(RAMP, 65535)], 2), 6), 4),
        (twelve_bits(), 1),
        (tiff((65535 - RAMP).astype("<u2").tobytes(), 16, black=1), 1),
    ],
    ids=["colour", "colour as grey", "grey with alpha", "with alpha", "12 bits", "0 is white"],
)
def test_read_pixels_scales_other_deep_images_to_8_bits(content: bytes, channels: int) -> None:
    pixels = read_pixels(io.BytesIO(content), channels)
    assert (pixels[..., 0] == EXPECTED).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_read_pixels_refuses_modes_without_a_defined_range(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "ramp.tif"
    Image.fromarray(RAMP.astype(kind)).save(path)
    with pytest.raises(
        DataError, match=r"ramp.tif: pixels of mode '[IF]' .* convert the image"
    ) as caught:
        read_pixels(path, 1)
    assert not isinstance(caught.value, DamagedImage)
    with (
        Image.open(path) as image,
        pytest.raises(ValueError, match="without a defined white value"),
    ):
        upright_pixels(image, "L")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("ending", "depth"), [("png", 8), ("png", 16), ("tif", 8), ("tif", 16), ("jpg", 8)]
)
def test_read_pixels_turns_images_upright(
    tmp_path: Path, orientation: int, ending: str, depth: int
) -> None:
    stored = np.zeros((8, 16), np.uint8)
    stored[:, 8:], stored[4:, :8] = 255, 128  # different corners
    turn = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.T, 6: lambda a: np.rot90(a, -1), 7: lambda a: a[::-1, ::-1].T,
        8: lambda a: np.rot90(a),
    }  # fmt: skip
    deep = stored.astype(np.uint16) * 257 if depth == 16 else stored
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"image.{ending}"
    Image.fromarray(deep).save(path, exif=exif, quality=100)
    expected = turn[orientation](stored)
    with Image.open(path) as image:
        assert upright_size(image) == expected.shape
    found = read_pixels(path, 1)[..., 0]
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= (4 if ending == "jpg" else 0)


@pytest.mark.parametrize(
    ("mode", "grey"),
    [("1", True), ("L", True), ("LA", False), ("P", False), ("RGB", False), ("CMYK", False)],
)
def test_other_modes_have_8_bits_per_channel(mode: str, grey: bool) -> None:
    image = Image.new(mode, (3, 2), 1)
    assert highest_value(image) == 255
    assert is_grey(image) == grey
    for wanted, shape in (("L", (2, 3)), ("RGB", (2, 3, 3)), ("RGBA", (2, 3, 4))):
        assert upright_pixels(image, wanted).shape == shape


def test_is_grey_accepts_16_bit_grey_images() -> None:
    assert is_grey(Image.fromarray(RAMP))


def test_read_pixels_distinguishes_damaged_images_from_system_errors(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DamagedImage, match=r"text.png cannot be read") as caught:
        read_pixels(tmp_path / "text.png", 3)
    assert caught.value.reason == "cannot identify image file"
    with pytest.raises(DataError, match="Is a directory") as refused:
        read_pixels(tmp_path, 3)
    assert not isinstance(refused.value, DamagedImage)
