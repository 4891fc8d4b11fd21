"""Size and kind of an image file, read from its header without decoding or unpacking.

Pillow reads only JPEG headers, because it unpacks the comments of a PNG as soon as it opens one.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from PIL import Image

from hwnas.deploy.serve.limits import RequestRefusal

__all__ = ["ImageHeader", "read_header"]

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_MOST_PARTS = 50_000
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_UNPACKED = (b"zTXt", b"iTXt", b"iCCP")


@dataclass(frozen=True)
class ImageHeader:
    """Properties of an image file according to its header.

    Attributes:
        width: Number of pixels in a row.
        height: Number of rows.
        channels: Number of values in a pixel; 1 for a palette.
        is_deep: Whether the image is grey with more than 8 bits.
        is_jpeg: Whether the file is a JPEG; otherwise it is a PNG.
        packed_texts: Number of packed comments and profiles; Pillow unpacks up to 1 MB of each.
    """

    width: int
    height: int
    channels: int
    is_deep: bool = False
    is_jpeg: bool = False
    packed_texts: int = 0


def read_header(body: bytes) -> ImageHeader:
    """Read the header of a PNG or JPEG.

    Raises:
        Refusal: 400 if the file is neither or its header is damaged, 413 if it has too many pixels.
    """
    try:
        if body.startswith(_PNG):
            return _png(body)
        if body.startswith(_JPEG):
            return _jpeg(body)
    except RequestRefusal:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestRefusal(413, str(error)) from None
    except Exception:  # damaged files make Pillow raise nearly anything
        raise RequestRefusal(400, "the body is not a valid image: its header is damaged") from None
    raise RequestRefusal(400, "the body is not an image; expected PNG or JPEG")


def _png(body: bytes) -> ImageHeader:
    length, kind, width, height, depth, colour = struct.unpack_from(">I4sIIBB", body, 8)
    if (length, kind) != (13, b"IHDR") or 0 in (width, height):
        raise RequestRefusal(
            400, "the body is not a valid image: the PNG does not begin with its size"
        )
    place, packed = 8 + 12 + length, 0
    for _ in range(_MOST_PARTS):
        if place + 8 > len(body):
            break
        length, kind = struct.unpack_from(">I4s", body, place)
        if kind == b"IHDR":
            raise RequestRefusal(400, "the body is not a valid image: the PNG gives its size twice")
        if kind == b"IEND":
            break
        packed += kind in _UNPACKED
        place += 12 + length
    else:
        raise RequestRefusal(400, f"the PNG has more than {_MOST_PARTS} chunks")
    return ImageHeader(
        width, height, _PNG_CHANNELS[colour], colour == 0 and depth > 8, packed_texts=packed
    )


def _jpeg(body: bytes) -> ImageHeader:
    with Image.open(io.BytesIO(body), formats=["JPEG"]) as image:
        return ImageHeader(*image.size, len(image.getbands()), is_jpeg=True)
