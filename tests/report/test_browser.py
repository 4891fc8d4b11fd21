"""The report in a real browser."""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace

import pytest

from hwnas.report import write_report

CHROMIUM = shutil.which("chromium")
PLOTS = 7
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return a function that opens a report in the browser and returns the final document."""

    def open_report(data, extra=""):
        tmp_path = tmp_path_factory.mktemp("browser")
        path = write_report(data, tmp_path / "report.html")
        path.write_text(path.read_text().replace("</body>", f"{extra}</body>"))
        page = ["--virtual-time-budget=20000", "--dump-dom", path.as_uri()]
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
            done = subprocess.run(
                [CHROMIUM, *OPTIONS, profile, *page],
                capture_output=True,
                text=True,
                timeout=120,
                env={**os.environ, "TMPDIR": own},  # it leaves files there
            )
        assert done.returncode == 0, done.stderr[-2000:]
        document = done.stdout
        return document.replace(re.search(r"<script charset.*?</script>", document, re.S)[0], "")

    return open_report


@pytest.fixture(scope="module")
def document(opened, report_data):
    """Return the document of an ordinary report."""
    return opened(report_data)


def drawn(document):
    """Return the part of each figure between its title and its data."""
    return re.findall(r'<div class="plot.*?<script type="application/json">', document, re.S)


def errors(document):
    return re.search(r"<html[^>]*>", document)[0].partition("data-errors=")[2]


def test_report_draws_every_plot_without_errors_or_requests(document):
    plots = drawn(document)
    assert errors(document) == ""
    assert len(plots) == PLOTS
    for plot in plots:
        assert "main-svg" in plot
        assert re.search(r'class="(trace|point|trace bars|hm)', plot)
    addresses = set(re.findall(r"https?://[^\"'\s<&]+", document))
    assert all(address.startswith("http://www.w3.org/") for address in addresses), addresses
    assert not re.search(r'(src|href)="(?!#|data:)', document)


@pytest.mark.slow
def test_report_blocks_requests_and_records_errors(opened, report_data):
    noticed = {
        "<script>fetch('http://127.0.0.1:9/')</script>": "refused http://127.0.0.1:9/",
        "<img src='http://127.0.0.1:9/x.png'>": "refused http://127.0.0.1:9/x.png",
        "<script>nothing.there</script>": "nothing is not defined",
    }
    found = errors(opened(report_data, "".join(noticed)))
    assert [each for each in noticed.values() if each not in found] == []


def test_report_has_only_local_plot_buttons(document):
    titles = set(re.findall(r'data-title="([^"]*)"', document))
    assert titles == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}


@pytest.mark.slow
def test_report_runs_no_script_from_hostile_names(opened, report_data):
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    finalists = tuple(replace(f, picks=(evil,)) for f in report_data.finalists)
    trials = tuple(replace(t, sampler=evil, id=t.id) for t in report_data.trials)
    document = opened(replace(report_data, name="mine", finalists=finalists, trials=trials))
    assert errors(document) == ""
    assert len(drawn(document)) == PLOTS
    assert "<title>mine" in document
