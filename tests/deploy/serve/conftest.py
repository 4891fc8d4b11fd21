"""Listening server with a client, and a strict parser of its Prometheus metrics."""

import http.client
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.bundles.checksums import render_sums, sha256
from hwnas.deploy.serve import BatchSettings, BundleServer, ServerLimits, Service


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def refused(self, status: int, *parts: str) -> None:
        """Assert that the reply is an error in one line of JSON that contains the parts."""
        assert self.status == status, self
        assert self.headers["Content-Type"] == "application/json"
        assert self.body.count(b"\n") == 1
        for part in parts:
            assert part in self.json["error"]


class Client:
    """Client with a connection that stays open."""

    def __init__(self, server: BundleServer) -> None:
        self.address = server.server_address[:2]
        self.connection = http.client.HTTPConnection(*self.address, timeout=30)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, named)
        answer = self.connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, body: bytes, kind: str = "application/octet-stream") -> Reply:
        return self.ask("POST", path, body, Content_Type=kind)


@contextmanager
def serving(
    bundle: Bundle, limits: ServerLimits | None = None, settings: BatchSettings | None = None
) -> Iterator[tuple[BundleServer, Client]]:
    service = Service(bundle, settings or BatchSettings(), limits or ServerLimits())
    with BundleServer(service, port=0) as server:
        client = Client(server)
        try:
            yield server, client
        finally:
            client.connection.close()


@pytest.fixture(name="serving")
def _serving() -> Callable[..., Any]:
    return serving


@pytest.fixture(scope="session")
def masks_bundle(
    to_pack: BundleNetwork,
    facts: BundleFacts,
    preprocessing: Preprocessing,
    digits: NDArray[np.uint8],
    tmp_path_factory: pytest.TempPathFactory,
) -> Bundle:
    """Bundle of a network that classifies each pixel as paper or ink."""
    torch.manual_seed(0)
    network = nn.Conv2d(1, 2, 3, stride=2, padding=1)
    folder = tmp_path_factory.mktemp("masks")
    exported = export_onnx(
        network, preprocessing.input_shape, folder / "a.onnx", preprocessing(digits), traceable=True
    )
    changed = replace(
        to_pack,
        export=exported,
        weights=network.state_dict(),
        outputs=OutputMeaning("pixel_class_scores", ("paper", "ink")),
    )
    return write_bundle(folder / "bundle", changed, facts)


@pytest.fixture
def with_two_artifacts(packed: Bundle, tmp_path: Path) -> Bundle:
    """Bundle whose file runs in ONNX Runtime and in PyTorch."""
    folder = shutil.copytree(packed.folder, tmp_path / "two")
    description = json.loads((folder / "bundle.json").read_text())
    [first] = description["artifacts"]
    description["artifacts"] = [first, {**first, "runtime": "pytorch"}]
    (folder / "bundle.json").write_text(json.dumps(description))
    sums = {name: sha256(folder / name) for name in packed.files if name != "bundle.sha256"}
    (folder / "bundle.sha256").write_text(render_sums(sums))
    return Bundle.load(folder)


_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_KINDS = ("counter", "gauge", "histogram")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def exposition(text: str) -> Samples:
    """Read the text format 0.0.4, as strictly as its specification."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    helped: list[str] = []
    samples: Samples = {}
    family = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in helped, "one HELP a metric"
            helped.append(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert name not in kinds
            assert kind in _KINDS
            kinds[name] = kind
        else:
            found = _SAMPLE.fullmatch(line)
            assert found, line
            name, labels, number = found[1], found[2], found[found.re.groups]
            ends = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert name in [family + end for end in ends], "samples stand below their metric"
            pairs = dict(re.findall(_LABEL, labels or ""))
            key = name, frozenset((a, unescaped(b)) for a, b in pairs.items())
            assert key not in samples, "each sample stands once"
            samples[key] = math.inf if number == "+Inf" else float(number)
    assert set(kinds) == set(helped)
    for name in (name for name, kind in kinds.items() if kind == "histogram"):
        check_histogram(name, samples)
    return samples


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def check_histogram(name: str, samples: Samples) -> None:
    buckets = [(k, v) for k, v in samples.items() if k[0] == f"{name}_bucket"]
    bounds = [float(dict(labels)["le"].replace("+Inf", "inf")) for (_, labels), _ in buckets]
    counts = [count for _, count in buckets]
    assert bounds == sorted(set(bounds))
    assert counts == sorted(counts)
    assert bounds[-1] == math.inf
    assert counts[-1] == samples[f"{name}_count", frozenset()]
    assert (f"{name}_sum", frozenset()) in samples


@pytest.fixture(name="exposition")
def _exposition() -> Callable[[str], Samples]:
    return exposition


@pytest.fixture(scope="session")
def png(digits: NDArray[np.uint8], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    path = tmp_path_factory.mktemp("image") / "image.png"
    Image.fromarray(digits[3, :, :, 0]).resize((20, 14)).save(path)
    return path
