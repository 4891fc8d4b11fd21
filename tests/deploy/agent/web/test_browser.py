"""The page of a web agent in browsers: it is paired, measures networks, and shows what it does."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.deploy.agent.web.conftest import Web

from experiments import chromium, firefox
from experiments.scripted_page import ScriptedPage
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.web import serve
from hwnas.deploy.agent.web.serve import WebOptions
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.runtimes.ort_web_files import RuntimeFiles
from hwnas.deploy.targets.target import Target

pytest.importorskip("tornado", reason="tornado is not installed; it comes with ipykernel")
pytestmark = pytest.mark.slow
BROWSERS = {
    "Chrom": (chromium.CHROMIUM, chromium.opened),
    "Firefox": (firefox.FIREFOX, firefox.opened),
}
"""Program of each browser, and function that opens a page, by a part of its name."""
Opened = Callable[[Path, str], AbstractContextManager[ScriptedPage]]
SETTINGS = TimingSettings(warmup=3, rounds=15, round_ms=3.0, retries=2)


@pytest.fixture(params=list(BROWSERS))
def name(request: pytest.FixtureRequest) -> str:
    if BROWSERS[request.param][0] is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def opened(name: str) -> Opened:
    return BROWSERS[name][1]


@pytest.fixture(params=["http", "https"])
def web(request: pytest.FixtureRequest, tmp_path: Path, ort_web: RuntimeFiles) -> Iterator[Web]:
    told: list[str] = []
    folder, plain = tmp_path / "web-agent", request.param == "http"
    options = WebOptions("127.0.0.1", 0, 0, http=plain, folder=folder, runtime_files=ort_web.folder)
    with serve.opened(options, told.append) as agent:
        yield Web(agent, told, folder)


def paired(page: ScriptedPage, web: Web, name: str) -> None:
    page.wait_until("!document.getElementById('pair').hidden")
    confirm(page, name, web.code)
    page.wait_until("!document.getElementById('work').hidden")
    add_device(name, f"{web.agent.host_url}/{name}", web.token, hardware="browser")


def confirm(page: ScriptedPage, name: str, code: str) -> None:
    page.evaluate(
        f"(() => {{ document.getElementById('name').value = '{name}';"
        f"document.getElementById('code').value = '{code}';"
        "document.getElementById('confirm').click(); })()"
    )


def test_browser_measures_networks_on_one_and_two_threads(
    web: Web, model: Path, name: str, opened: Opened, tmp_path: Path
) -> None:
    with opened(tmp_path / "profile", web.agent.page_urls[0]) as page:
        paired(page, web, "laptop")
        found = {
            threads: measure(
                {"net": model}, Target.parse(f"laptop-ortweb-fp32-b1-t{threads}"), SETTINGS
            )["net"]
            for threads in (1, 2)
        }
        assert page.evaluate("document.getElementById('message').textContent") == ""
    for threads, measured in found.items():
        assert 0 < measured.wall_ms.p20 <= measured.latency_ms <= measured.wall_ms.p80 < 1000
        assert measured.anchor_ms > 0
        assert measured.settings["threads"] == str(threads)
        assert measured.versions["onnxruntime-web"] == "1.30.0"
        assert name in measured.versions["browser"]
        assert float(measured.conditions["clock_grain_ms"]) < 0.2, "the page is isolated"


@pytest.mark.skipif(chromium.CHROMIUM is None, reason="chromium is not installed")
def test_browser_measures_networks_in_webgpu(
    model: Path, ort_web: RuntimeFiles, tmp_path: Path
) -> None:
    """WebGPU is computed by the processor here, so nothing is said of its times."""
    told: list[str] = []
    folder = tmp_path / "web-agent"
    options = WebOptions("127.0.0.1", 0, 0, http=True, folder=folder, runtime_files=ort_web.folder)
    with serve.opened(options, told.append) as agent:
        url = agent.page_urls[0]
        with chromium.opened(tmp_path / "profile", url, webgpu=True) as page:
            page.wait_until("!document.getElementById('pair').hidden")
            if not page.evaluate("navigator.gpu?.requestAdapter().then((found) => found !== null)"):
                pytest.skip("this Chromium has no WebGPU")
            paired(page, Web(agent, told, folder), "laptop")
            target = Target.parse("laptop-webgpu-fp32-b1-t1")
            measured = measure({"net": model}, target, SETTINGS)["net"]
    assert 0 < measured.wall_ms.p20 <= measured.latency_ms
    assert "swiftshader" in measured.hardware.lower() + str(measured.settings).lower()


def test_pairing_survives_a_reload_and_a_wrong_code_is_told(
    web: Web, opened: Opened, tmp_path: Path
) -> None:
    with opened(tmp_path / "profile", web.agent.page_urls[0]) as page:
        page.wait_until("!document.getElementById('pair').hidden")
        confirm(page, "laptop", "WRONG")
        page.wait_until("document.getElementById('message').textContent.includes('wrong')")
        paired(page, web, "laptop")
        page.navigate(web.agent.page_urls[0])
        page.wait_until("!document.getElementById('work').hidden")
        page.wait_until("document.getElementById('state').textContent.includes('Waiting')")
        assert page.evaluate("document.getElementById('paired').textContent") == "laptop"


def test_command_serves_the_page_until_it_is_stopped(tmp_path: Path, ort_web: RuntimeFiles) -> None:
    command = [
        *(sys.executable, "-m", "hwnas.cli", "agent", "web", "--http", "--host", "127.0.0.1"),
        *("--port", "0", "--host-port", "0", "--folder", str(tmp_path / "agent")),
        *("--runtime-files", str(ort_web.folder)),
    ]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        timer = threading.Timer(60, process.kill)
        timer.start()
        for line in process.stdout:
            lines.append(line)
            if "hosts add" in line:
                break
        process.terminate()
        assert process.wait(30) == 0
        timer.cancel()
    assert any("pairing code" in line for line in lines)
    assert any(line.startswith("open in the browser") for line in lines)
