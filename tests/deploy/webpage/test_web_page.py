"""Web pages of exported networks: their answers in browsers are those of the bundle."""

import base64
import contextlib
import functools
import http.server
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from experiments import chromium, firefox
from experiments.scripted_page import ScriptedPage
from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.runtimes.ort_web_files import WEB_FILES, RuntimeFiles
from hwnas.deploy.webpage import write_web_page
from hwnas.errors import ConfigError
from hwnas.search_spaces import mobilenet

LABELS = "tench", "church", "<b>ball</b>"
BROWSERS = {
    "chromium": (chromium.CHROMIUM, chromium.opened),
    "firefox": (firefox.FIREFOX, firefox.opened),
}
"""Program of each browser, and function that opens a page."""
Opened = Callable[[Path, str], AbstractContextManager[ScriptedPage]]


@pytest.fixture(params=list(BROWSERS))
def opened(request: pytest.FixtureRequest) -> Opened:
    program, open_page = BROWSERS[request.param]
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    return open_page


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> RuntimeFiles:
    """Files of the right names, without a runtime."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in WEB_FILES:
        (folder / name).write_text(f"// {name}")
    return RuntimeFiles(folder, "0")


@pytest.fixture(scope="module")
def photographs(facts: BundleFacts, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Bundle of a colour network that cuts out the centre of pictures."""
    torch.manual_seed(0)
    space = mobilenet((24, 32, 3), 3, preset="tiny", resolution=(32,))
    network = space.build(space.smallest()).eval()
    shape = space.input_shape(space.smallest())
    how = Preprocessing(*shape[1:], 3, (0.48, 0.45, 0.4), (0.23, 0.22, 0.24), "crop")
    images = pictures()[0][None]
    folder = tmp_path_factory.mktemp("photographs")
    exported = export_onnx(network, shape, folder / "network.onnx", how(images), how)
    meaning = OutputMeaning("class_scores", LABELS)
    packed = BundleNetwork(space.smallest(), exported, network.state_dict(), how, meaning, images)
    return write_bundle(folder / "bundle", packed, facts)


def pictures() -> list[NDArray[np.uint8]]:
    """Return smooth colour pictures of several sizes and shapes."""
    found = []
    for number, (height, width) in enumerate([(24, 32), (60, 45), (33, 120), (17, 20), (200, 310)]):
        y, x = np.mgrid[:height, :width] / 20
        waves = [np.sin(x * (c + 1) + number) + np.cos(y * (3 - c)) for c in range(3)]
        found.append((127 + 60 * np.stack(waves, -1)).clip(0, 255).astype(np.uint8))
    return found


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as any web server does, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def classified(page: ScriptedPage, image: NDArray[np.uint8]) -> dict[str, float]:
    """Return the probabilities by label that the page shows for a picture."""
    file = io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, "PNG")
    text = base64.b64encode(file.getvalue()).decode()
    found = page.evaluate(
        f"fetch('data:image/png;base64,{text}').catch(() => null).then(async () => {{"
        f"const bytes = Uint8Array.from(atob('{text}'), (c) => c.charCodeAt(0));"
        "return classify(new Blob([bytes], { type: 'image/png' })); })"
    )
    return {each["label"]: each["probability"] for each in found}


@pytest.mark.slow
def test_page_answers_as_the_bundle_does_also_offline(
    photographs: Bundle, packed: Bundle, digits: NDArray[np.uint8], ort_web: RuntimeFiles,
    opened: Opened, tmp_path: Path,
) -> None:  # fmt: skip
    cases = {"colour": (photographs, pictures()), "grey": (packed, list(digits[:5]))}
    for name, (bundle, images) in cases.items():
        write_web_page(bundle, tmp_path / name, ort_web)
        with opened(tmp_path / f"{name} profile", "about:blank") as page:
            with served(tmp_path / name) as address:
                page.navigate(address)
                page.wait_until("document.getElementById('state').textContent === 'Ready.'")
                for image in images:
                    agree(classified(page, image), bundle, image)
                page.evaluate("navigator.serviceWorker.ready.then(() => true)")
            page.navigate(address)  # the server is gone
            page.wait_until("document.getElementById('state').textContent === 'Ready.'")
            agree(classified(page, images[0]), bundle, images[0])


def agree(found: dict[str, float], bundle: Bundle, image: NDArray[np.uint8]) -> None:
    pixels = image if image.ndim == 3 else image[..., None]
    logits = torch.from_numpy(bundle.predict(pixels[None]))
    right = dict(zip(bundle.outputs.labels, logits.softmax(1)[0].tolist(), strict=True))
    assert found == pytest.approx(right, abs=1e-3)


@pytest.mark.slow
def test_page_shows_a_chosen_picture_and_labels_as_text(
    photographs: Bundle, ort_web: RuntimeFiles, opened: Opened, tmp_path: Path
) -> None:
    write_web_page(photographs, tmp_path / "page", ort_web)
    picture = tmp_path / "picture.png"
    Image.fromarray(pictures()[1]).save(picture)
    with (
        served(tmp_path / "page") as address,
        opened(tmp_path / "profile", address) as page,
    ):
        page.wait_until("document.getElementById('state').textContent === 'Ready.'")
        page.choose_file("#file", picture)
        page.wait_until("document.querySelectorAll('#answers li').length === 3")
        text = page.evaluate("document.getElementById('answers').innerText")
        assert "<b>ball</b>" in text
        assert not page.evaluate("document.getElementById('picture').hidden")


def test_page_holds_all_that_it_loads(packed: Bundle, fake: RuntimeFiles, tmp_path: Path) -> None:
    write_web_page(packed, tmp_path / "page", fake)
    for file in (tmp_path / "page").rglob("*.js"):
        assert "http" not in file.read_text().replace("HTTPS", ""), file
    worker = (tmp_path / "page" / "sw.js").read_text()
    kept = json.loads(worker[worker.index("[") : worker.index("]") + 1])
    files = {str(p.relative_to(tmp_path / "page")) for p in (tmp_path / "page").rglob("*.*")}
    assert set(kept) == files - {"sw.js"} | {"./"}
    about = json.loads((tmp_path / "page" / "network.json").read_text())
    assert about["labels"] == list(packed.outputs.labels)


def test_page_is_refused_where_it_makes_no_sense(
    packed: Bundle, fake: RuntimeFiles, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_web_page(packed, tmp_path / "full", fake)
    outputs = {**packed.description["outputs"], "kind": "values"}
    numbers = replace(packed, description={**packed.description, "outputs": outputs})
    with pytest.raises(ConfigError, match="classes and labels"):
        write_web_page(numbers, tmp_path / "page", fake)
    assert not (tmp_path / "page").exists()
