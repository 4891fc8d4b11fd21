import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from hwnas import progress
from hwnas.errors import StorageError
from hwnas.progress import Reporter, make_reporter


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def reporter(told: io.StringIO) -> Reporter:
    return Reporter(Console(file=told, width=60))


def test_reporter_raises_a_pending_interrupt_at_the_next_progress(reporter: Reporter) -> None:
    def work() -> None:
        with reporter.stage("train") as advance:
            advance(0.1)
            reporter.interrupted = True
            advance(0.2)

    with pytest.raises(KeyboardInterrupt):
        work()


def test_counter_reports_after_a_second_and_then_at_intervals(
    reporter: Reporter, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    count = reporter.counter("decoded images")
    for done in range(1, 2400):
        now += 1 / 64
        count(done, 2400)
    count(2400)
    assert told.getvalue().splitlines() == [
        "  decoded images: 64 of 2,400",
        "  decoded images: 704 of 2,400",
        "  decoded images: 1,344 of 2,400",
        "  decoded images: 1,984 of 2,400",
    ]
    reporter.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        count(2400)


def test_reporter_prints_plain_lines_without_a_terminal(
    reporter: Reporter, told: io.StringIO
) -> None:
    with reporter.stage("train") as advance:
        for step in range(1000):
            advance(step / 1000, "loss 1.0")
    lines = told.getvalue().splitlines()
    assert lines[0] == "  train ..."
    assert lines[1].startswith("✓ train 0.")
    assert len(lines) == 2, "quiet where it is quick"
    assert "\x1b" not in told.getvalue()


def test_reporter_prints_progress_lines_at_intervals(
    reporter: Reporter, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
    with reporter.stage("train") as advance:
        time.sleep(0.02)
        advance(0.25, "epoch 1.0, [loss] 0.5, and more that goes beyond the width of a line")
    assert told.getvalue().splitlines()[1] == (
        "  train  25% epoch 1.0, [loss] 0.5, and more that goes beyond the width of a line"
    )


def test_reporter_writes_stages_and_notes_to_the_log(reporter: Reporter, tmp_path: Path) -> None:
    reporter.log = tmp_path / "log.jsonl"
    with reporter.stage("train"):
        reporter.note("the machine is [busy]", share=0.5)
    rows = [json.loads(line) for line in reporter.log.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["stage", "note", "done"]
    assert rows[1]["text"] == "the machine is [busy]"
    assert rows[1]["share"] == 0.5
    assert rows[2]["seconds"] >= 0


def fail_in_a_stage(reporter: Reporter) -> None:
    with reporter.stage("train"):
        raise ValueError("the stage failed")


def test_reporter_does_not_mark_a_failed_stage_as_done(
    reporter: Reporter, told: io.StringIO, tmp_path: Path
) -> None:
    reporter.log = tmp_path / "log.jsonl"
    with pytest.raises(ValueError, match="the stage failed"):
        fail_in_a_stage(reporter)
    assert "✓" not in told.getvalue()
    assert "done" not in reporter.log.read_text()


def test_reporter_raises_a_storage_error_if_the_log_cannot_be_written(
    reporter: Reporter, tmp_path: Path
) -> None:
    reporter.log = tmp_path / "nowhere" / "log.jsonl"
    with pytest.raises(StorageError, match=r"cannot write .*log\.jsonl"):
        reporter.note("something")


def test_quiet_reporter_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with make_reporter(quiet=True).stage("train") as advance:
        advance(0.5)
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import time
from hwnas.progress import make_reporter
with make_reporter().stage("train") as advance:
    for step in range(5):
        advance(step / 5, f"epoch {step}")
        time.sleep(0.15)
"""


def test_reporter_shows_a_bar_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert child.wait(timeout=10) == 0
    text = shown.decode()
    assert "━" in text
    assert "epoch 3" in text
    assert "0:00:0" in text
    assert "✓" in text.splitlines()[-1]
