"""Cascades behind the server, and the cache in front of networks."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from hwnas.deploy.caching import PredictionCache
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.cascades.packing import write_cascade
from hwnas.deploy.serve import BatchSettings, ServerLimits, Service
from hwnas.deploy.serve.metrics import render

Serving = Callable[..., Any]
Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def cascade(
    packed: Bundle,
    to_pack: BundleNetwork,
    facts: BundleFacts,
    digits: Images,
    tmp_path_factory: pytest.TempPathFactory,
) -> Cascade:
    """Cascade whose big network takes larger images, and answers half of them."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 10))
    folder = tmp_path_factory.mktemp("big")
    larger = Preprocessing(12, 12, 1, mean=(0.3,), std=(0.38,))
    made = export_onnx(network, (1, 12, 12), folder / "network.onnx", traceable=True)
    changed = replace(to_pack, export=made, weights=network.state_dict(), preprocessing=larger)
    probabilities = torch.from_numpy(packed.predict(digits)).softmax(1)
    threshold = float(probabilities.max(1).values.median())
    return write_cascade(
        folder / "two",
        small=packed,
        big=write_bundle(folder / "bundle", changed, facts),
        rule="maximum",
        threshold=threshold,
        numbers=[],
        golden_images=digits,
        provenance={},
    )


def at_reading_size(digits: Images) -> Images:
    return digits.repeat(2, 1).repeat(2, 2)[:, 2:14, 2:14]


def test_server_answers_as_the_cascade_does(
    serving: Serving, cascade: Cascade, digits: Images, exposition: Any
) -> None:
    images = at_reading_size(digits)
    expected = cascade.run(images)
    assert {each["network"] for each in expected} == {"small", "big"}
    with serving(cascade) as (server, client):
        assert server.service.image_shape == (12, 12, 1)
        found = json.loads(client.post("/predict", images.tobytes()).body)["predictions"]
        assert [(f["label"], f["network"]) for f in found] == [
            (e["label"], e["network"]) for e in expected
        ]
        file = io.BytesIO()
        Image.fromarray(digits[3, :, :, 0]).save(file, "PNG")
        [answer] = json.loads(client.post("/predict", file.getvalue(), "image/png").body)[
            "predictions"
        ]
        [alone] = cascade.run(digits[3:4])
        assert (answer["label"], answer["network"]) == (alone["label"], alone["network"])
        numbers = json.loads(client.post("/predict?output=numbers", images.tobytes()).body)
        np.testing.assert_allclose(numbers["outputs"], cascade.predict(images)[0], atol=1e-4)
        about = json.loads(client.get(f"/v2/models/{cascade.id}").body)
        assert about["inputs"][0]["shape"] == [-1, 12, 12, 1]
        assert about["outputs"][0]["shape"] == [-1, 10]
        samples = exposition(client.get("/metrics").body.decode())
        assert samples["hwnas_images_total", frozenset()] == 81
        big = sum(each["network"] == "big" for each in [*expected * 2, alone])
        assert samples["hwnas_big_images_total", frozenset()] == big
        mask = client.post("/predict?output=mask", images[:1].tobytes())
        mask.refused(400, "class_scores")


@pytest.mark.parametrize("kind", ["bundle", "cascade"])
def test_service_with_a_cache_answers_the_same_and_computes_once(
    cascade: Cascade, packed: Bundle, digits: Images, exposition: Any, kind: str
) -> None:
    model: Bundle | Cascade = packed if kind == "bundle" else cascade
    images = digits if kind == "bundle" else at_reading_size(digits)
    expected = model.run(images)
    cache = PredictionCache()
    service = Service(model, BatchSettings(), ServerLimits(), cache=cache)
    start = threading.Barrier(4)

    rows = np.random.default_rng(0).integers(0, len(images), (4, 60))

    def ask(number: int) -> list[bool]:
        start.wait()
        same = []
        with service.claim(lambda: True) as claim:
            for row in rows[number]:
                [found] = service.describe(images[row : row + 1], claim)
                same.append(found["label"] == expected[row]["label"])
                same.append(found.get("network") == expected[row].get("network"))
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(ask, range(4)))
    service.close()
    counts = cache.counts
    different = len(np.unique(rows))
    assert (counts.images, counts.entries) == (240, different)
    samples = exposition(render(service.metrics))
    assert samples["hwnas_cache_hits_total", frozenset()] == counts.hits
    assert samples["hwnas_cache_misses_total", frozenset()] == counts.misses
    # Two threads may compute the same image at the same time.
    assert different <= counts.misses == samples["hwnas_images_total", frozenset()] < 120


@pytest.mark.slow
def test_serve_command_serves_a_cascade_with_a_cache(cascade: Cascade, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hwnas.cli", "serve", cascade.folder, "--port", "0"]
    with subprocess.Popen(
        [*map(str, command), "--cache-mb", "1"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert f"cascade {cascade.id} at http://" in first
        url = first.split()[-1]
        for _ in range(3):
            request = urllib.request.Request(f"{url}/predict", bytes(144), method="POST")
            request.add_header("Content-Type", "application/octet-stream")
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["predictions"][0]["network"] in ("small", "big")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert "hwnas_cache_hits_total 2\n" in answer.read().decode()
        process.terminate()
        assert process.wait(20) == 0
