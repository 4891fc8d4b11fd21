"""Estimated memory of requests, compared with the memory that they really need."""

import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

from hwnas.deploy import Preprocessing
from hwnas.deploy.serve.costs import RequestCosts, json_bytes
from hwnas.deploy.serve.image_header import ImageHeader, read_header
from hwnas.deploy.serve.limits import RequestRefusal

PEAK = """
import io, sys
from pathlib import Path
import numpy as np, torch
from hwnas.deploy import Preprocessing
from hwnas.deploy.serve.memory import return_freed_memory

def taken(what):
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what)]
    return int(line.split()[1]) * 1024

return_freed_memory()
torch.set_num_threads(1)
for case in sys.argv[1:]:
    path, channels = case.split(":")
    body = Path(path).read_bytes()
    channels = int(channels)
    preprocessing = Preprocessing(64, 64, channels, (0.5,) * channels, (0.5,) * channels)
    preprocessing(np.zeros((1, 200, 200, channels), np.uint8))
    Path("/proc/self/clear_refs").write_text("5")
    before = taken("VmRSS")
    preprocessing(preprocessing.read_image(io.BytesIO(body))[None]).contiguous().numpy()
    print(taken("VmHWM") - before)
"""


def costs(channels: int) -> RequestCosts:
    return RequestCosts(
        Preprocessing(64, 64, channels, (0.5,) * channels, (0.5,) * channels), 10, 10
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="/proc is not Linux's")
def test_costs_bound_the_memory_of_any_image(tmp_path: Path) -> None:
    cases = [
        (mode, channels, size, kind, more)
        for mode, channels, size, kind, more in [
            ("L", 1, (2500, 2500), "PNG", {}),
            ("L", 3, (2000, 2000), "PNG", {}),
            ("RGB", 1, (2000, 2000), "PNG", {}),
            ("RGB", 3, (2000, 2000), "PNG", {}),
            ("RGBA", 3, (1500, 1500), "PNG", {}),
            ("P", 3, (2000, 2000), "PNG", {}),
            ("1", 1, (2500, 2500), "PNG", {}),
            ("I;16", 1, (2000, 2000), "PNG", {}),
            ("I;16", 3, (1500, 1500), "PNG", {}),
            ("RGB", 3, (2000, 2000), "JPEG", {"progressive": True, "subsampling": 0}),
            ("CMYK", 3, (1500, 1500), "JPEG", {}),
            ("L", 1, (1, 300_000), "PNG", {}),
            ("RGB", 3, (100_000, 3), "PNG", {}),
        ]
    ]
    arguments, reckoned = [], []
    for number, (mode, channels, size, kind, more) in enumerate(cases):
        path = tmp_path / f"{number}"
        Image.new(mode, size).save(path, kind, **more)
        arguments.append(f"{path}:{channels}")
        body = path.read_bytes()
        reckoned.append(costs(channels).file(read_header(body), len(body), "meaning"))
    found = subprocess.check_output([sys.executable, "-c", PEAK, *arguments], text=True)
    for case, most, line in zip(cases, reckoned, found.split(), strict=True):
        assert int(line) <= most, f"{case}: {int(line) / 1e6:.1f} of {most / 1e6:.1f} MB"
        if min(case[2]) > 3:  # narrow images may be rotated
            assert most < 4 * int(line) + 4e6, f"{case}: far too much is reckoned"


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * 200_000 + b"0]",
        b"[" + b"-6," * 200_000 + b"0]",
        b"[" + b"1e9," * 200_000 + b"0]",
        b"[" + b"[0]," * 200_000 + b"0]",
        b"[" + b"[]," * 200_000 + b"0]",
        b"[" + b"{}," * 200_000 + b"0]",
        b"[" + b'{"":0},' * 100_000 + b"0]",
        b"[" + b'"ab",' * 200_000 + b"0]",
        b"{" + b",".join(b'"%x":0' % number for number in range(100_000)) + b"}",
        b'["' + b"a" * 1_000_000 + "\N{GRINNING FACE}".encode() + b'"]',
        ("[" + '"é\N{GRINNING FACE}",' * 100_000 + "0]").encode(),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_json_bytes_bounds_the_memory_of_any_json(body: bytes) -> None:
    tracemalloc.start()
    json.loads(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= json_bytes(body)


def test_read_header_gives_size_channels_and_depth() -> None:
    def header(mode: str, kind: str, size: tuple[int, int] = (30, 20)) -> ImageHeader:
        file = io.BytesIO()
        Image.new(mode, size).save(file, kind)
        return read_header(file.getvalue())

    assert header("L", "PNG") == ImageHeader(30, 20, 1)
    assert header("P", "PNG") == ImageHeader(30, 20, 1)
    assert header("RGBA", "PNG") == ImageHeader(30, 20, 4)
    assert header("I;16", "PNG") == ImageHeader(30, 20, 1, is_deep=True)
    assert header("CMYK", "JPEG") == ImageHeader(30, 20, 4, is_jpeg=True)
    for damaged in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0\0\1"):
        with pytest.raises(RequestRefusal, match=r"not (an|a valid) image") as raised:
            read_header(damaged)
        assert raised.value.status == 400
