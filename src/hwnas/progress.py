"""Progress of a run: bars on a terminal, lines elsewhere, and a log file of JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hwnas.atomic import appending

__all__ = ["ProgressCallback", "Reporter", "SilentReporter", "make_reporter"]

_LINE_SECONDS = 10.0
_FIRST_SECONDS = 1.0


class ProgressCallback(Protocol):
    """Callback that reports the progress of a stage."""

    def __call__(self, share: float, detail: str = "") -> None:
        """Report the share of the stage that is done, in 0..1, and its current activity."""


class Reporter:
    """Reporter of stages and notes, to the console and as JSON lines to ``log``.

    Attributes:
        log: File of the JSON lines; None for no log.
        interrupted: Whether the run has to end; if set, the next call of `ProgressCallback` raises
            KeyboardInterrupt. An exception raised by a signal handler itself is lost where Python
            drops exceptions, such as in destructors.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self.log: Path | None = None
        self.interrupted = False

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[ProgressCallback]:
        """Report the start and end of a stage, and yield the callback for its progress.

        Raises:
            KeyboardInterrupt: From `ProgressCallback`, once ``interrupted`` is set.
        """
        started = time.perf_counter()
        self._write("stage", stage=name)
        with (_bar if self._console.is_terminal else _lines)(self._console, name) as show:

            def advance(share: float, detail: str = "") -> None:
                show(share, detail)
                if self.interrupted:
                    raise KeyboardInterrupt

            yield advance
        seconds = time.perf_counter() - started
        self._console.print(f"[green]✓[/] {name} [dim]{_duration(seconds)}[/]")
        self._write("done", stage=name, seconds=round(seconds, 3))

    def note(self, text: str, **values: Any) -> None:
        """Report a message that the user should know."""
        self._console.print(f"  {text}", markup=False, soft_wrap=True)
        self._write("note", text=text, **values)

    def counter(self, what: str) -> Callable[[int, int | None], None]:
        """Return a callback for a number of things that are done, and how many there are, if known.

        It reports them after a second, and then at intervals.

        Raises:
            KeyboardInterrupt: From the callback, once ``interrupted`` is set.
        """
        last = time.perf_counter() + _FIRST_SECONDS - _LINE_SECONDS

        def count(done: int, total: int | None = None) -> None:
            nonlocal last
            if self.interrupted:
                raise KeyboardInterrupt
            if time.perf_counter() - last >= _LINE_SECONDS:
                last = time.perf_counter()
                self.note(f"{what}: {done:,}" + ("" if total is None else f" of {total:,}"))

        return count

    def _write(self, what: str, **values: Any) -> None:
        if self.log is not None:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": what}
            with appending(self.log) as file:
                file.write(json.dumps({**line, **values}) + "\n")


class SilentReporter(Reporter):
    """Reporter that writes only to the log."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True, stderr=True))


def make_reporter(quiet: bool = False) -> Reporter:
    """Return the reporter for this process's standard error."""
    return SilentReporter() if quiet else Reporter()


@contextlib.contextmanager
def _bar(console: Console, name: str) -> Iterator[ProgressCallback]:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=1.0, detail="")

        def advance(share: float, detail: str = "") -> None:
            progress.update(task, completed=share, detail=detail)

        yield advance


@contextlib.contextmanager
def _lines(console: Console, name: str) -> Iterator[ProgressCallback]:
    console.print(f"  {name} ...", markup=False)
    last = time.perf_counter()

    def advance(share: float, detail: str = "") -> None:
        nonlocal last
        if time.perf_counter() - last >= _LINE_SECONDS:
            last = time.perf_counter()
            console.print(f"  {name} {share:4.0%} {detail}", markup=False, soft_wrap=True)

    yield advance
    sys.stderr.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes >= 1 else f"{rest:.1f} s"
