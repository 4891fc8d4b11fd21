"""Memory of the server while many clients send requests that need much memory."""

import http.client
import io
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Preprocessing,
    export_onnx,
    write_bundle,
)

RAW = "application/octet-stream"
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="/proc is not Linux's"
)
number_of_clients = pytest.mark.parametrize(
    "clients",
    [pytest.param(24, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.exhaustive)],
)


@pytest.fixture(scope="module")
def colour_bundle(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """Bundle of a network that takes RGB images of 64 x 64 pixels."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(64, 64, 3, mean=(0.5,) * 3, std=(0.5,) * 3)
    network = nn.Sequential(nn.Conv2d(3, 10, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    folder = tmp_path_factory.mktemp("colour")
    images = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    exported = export_onnx(
        network,
        preprocessing.input_shape,
        folder / "a.onnx",
        preprocessing(images),
        preprocessing,
        traceable=True,
    )
    changed = replace(
        to_pack,
        export=exported,
        weights=network.state_dict(),
        preprocessing=preprocessing,
        golden_images=images[:5],
    )
    return write_bundle(folder / "bundle", changed, facts)


class Served:
    """Server in another process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        host, port = url.removeprefix("http://").split(":")
        self.address = host, int(port)

    def ask(self, body: bytes, kind: str = "image/png", path: str = "/predict") -> tuple[int, Any]:
        connection = http.client.HTTPConnection(*self.address, timeout=100)
        try:
            connection.request("POST", path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def taken(self, what: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith(f"{what}:")]
        return int(line.split()[1]) * 1024

    def peak(self, load: Callable[[], object]) -> int:
        """Return the peak memory during a load, minus the memory before it."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        before = self.taken("VmRSS")
        load()
        return self.taken("VmHWM") - before

    def at_once(self, bodies: list[bytes], *how: str) -> Counter[int]:
        """Send all bodies at the same time, each from one client; count the statuses."""
        found: Counter[int] = Counter()
        with ThreadPoolExecutor(len(bodies)) as pool:
            for status, answer in pool.map(lambda body: self.ask(body, *how), bodies):
                found[status] += 1
                if status in (413, 503):
                    assert re.search("MB of memory|images wait", answer["error"]), answer
        return found


@contextmanager
def served(bundle: Bundle, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-u", "-m", "hwnas.cli", "serve", str(bundle.folder)]
    with subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            server = Served(process, process.stdout.readline().split()[-1])
            small = png(np.zeros((64, 64, 3), np.uint8))
            assert server.ask(small)[0] == 200, "so all that is loaded late is there"
            yield server
        finally:
            process.terminate()


def png(pixels: NDArray[Any], mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, "PNG", compress_level=1)
    return file.getvalue()


@number_of_clients
def test_server_stays_below_its_memory_limit_with_large_images(
    colour_bundle: Bundle, clients: int
) -> None:
    """Regression test: eight clients needed 3.2 GB. The default limit is 1 GB."""
    body = png(np.zeros((5000, 5000, 3), np.uint8))
    with served(colour_bundle) as server:
        found: list[Counter[int]] = []
        peak = server.peak(lambda: found.append(server.at_once([body] * clients)))
        assert peak < 10**9
        assert set(found[0]) <= {200, 503}
        assert found[0][200] > 0
        assert server.taken("VmRSS") < 10**9
        print(f"peak {peak / 1e6:.0f} MB, answers {dict(found[0])}")


@number_of_clients
def test_server_stays_below_its_memory_limit_for_any_kind_of_request(
    colour_bundle: Bundle, clients: int
) -> None:
    limit_mb = 400
    noise = np.random.default_rng(0)
    grey = np.zeros((3000, 3000), np.uint8)
    loads: dict[str, tuple[list[bytes], str, str]] = {
        "16 bits": ([png(np.zeros((2500, 2500), np.uint16))], "image/png", "/predict"),
        "palette": ([png(grey, "P")], "image/png", "/predict"),
        "transparent": ([png(grey, "RGBA")], "image/png", "/predict"),
        "narrow": ([png(np.zeros((2_000_000, 1), np.uint8))], "image/png", "/predict"),
        "JPEG": ([jpeg((3000, 3000))], "image/jpeg", "/predict"),
        "on its side": ([jpeg((3000, 3000), lies=True)], "image/jpeg", "/predict"),
        "incompressible": (
            [png(noise.integers(0, 256, (1500, 1500, 3), np.uint8))], "image/png", "/predict",
        ),
        "raw": ([bytes(128 * 64 * 64 * 3)], RAW, "/predict"),
        "raw, as numbers": ([bytes(128 * 64 * 64 * 3)], RAW, "/predict?output=numbers"),
        "JSON": ([listed(64)], "application/json", "infer"),
        "JSON of nothing": ([b"[" + b"{}," * 2_000_000 + b"0]"], "application/json", "infer"),
        "texts": (
            [inference('["' + "x" * 1_000_000 + '"' + ',""' * 1000 + "]")],
            "application/json", "infer",
        ),
        "commented": ([commented()], "image/png", "/predict"),
    }  # fmt: skip
    with served(colour_bundle, "--memory-mb", str(limit_mb)) as server:
        infer = f"/v2/models/{colour_bundle.description['id']}/infer"
        for name, ([body], kind, path) in loads.items():
            where = infer if path == "infer" else path
            found: list[Counter[int]] = []
            peak = server.peak(partial(load, server, [body] * clients, kind, where, found))
            print(f"{name}: {len(body) / 1e6:.1f} MB, peak {peak / 1e6:.0f} MB, {dict(found[0])}")
            assert peak < limit_mb * 1e6, name
            assert set(found[0]) <= {200, 400, 413, 503}, name
        time.sleep(0.5)
        connection = http.client.HTTPConnection(*server.address)
        connection.request("GET", "/metrics")
        assert "hwnas_memory_bytes 0\n" in connection.getresponse().read().decode()
        connection.close()


def load(
    server: Served, bodies: list[bytes], kind: str, path: str, found: list[Counter[int]]
) -> None:
    found.append(server.at_once(bodies, kind, path))


def jpeg(size: tuple[int, int], lies: bool = False) -> bytes:
    file = io.BytesIO()
    about = Image.Exif()
    if lies:
        about[0x112] = 6
    Image.new("RGB", size).save(file, "JPEG", progressive=True, subsampling=0, exif=about)
    return file.getvalue()


def commented() -> bytes:
    """Return a PNG of one pixel, with comments of 60 MB when they are decompressed."""
    from PIL.PngImagePlugin import PngInfo

    file, about = io.BytesIO(), PngInfo()
    for number in range(60):
        about.add_text(f"comment {number}", " " * 1_000_000, zip=True)
    Image.new("RGB", (1, 1)).save(file, "PNG", pnginfo=about)
    return file.getvalue()


def inference(data: str, images: int = 1) -> bytes:
    tensor = f'"name": "images", "datatype": "UINT8", "shape": [{images}, 64, 64, 3]'
    return f'{{"inputs": [{{{tensor}, "data": {data}}}]}}'.encode()


def listed(images: int) -> bytes:
    return inference(json.dumps([255] * (images * 64 * 64 * 3)), images)
