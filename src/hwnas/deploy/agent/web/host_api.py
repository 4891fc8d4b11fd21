"""Answers to hosts: the protocol of an agent for each browser of a web agent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import hwnas
from hwnas.deploy.agent.measuring_job import LATENCY
from hwnas.deploy.agent.protocol import (
    AgentDescription,
    AgentLimits,
    AgentReply,
    AgentRequest,
    refusal,
)
from hwnas.deploy.agent.server.api import Api
from hwnas.deploy.agent.server.job_queue import JobQueue
from hwnas.deploy.agent.server.model_store import ModelStore
from hwnas.deploy.agent.web.browser import Browser, BrowserFacts, Browsers
from hwnas.deploy.agent.web.channel import Channel
from hwnas.deploy.agent.web.timing import BrowserTiming
from hwnas.deploy.runtimes.browser import BROWSER, BROWSER_RUNTIMES
from hwnas.errors import ConfigError, HwnasError

__all__ = ["BrowserApi", "HostApi"]

_NEEDS_WEBGPU = "the browser of the device has no WebGPU"
_NEEDS_ISOLATION = "threads need a page over HTTPS, or on this machine"


@dataclass(frozen=True)
class BrowserApi(Api):
    """Agent of one browser.

    Attributes:
        browser: Browser, as it was paired.
        channel: Channel to its page.
        timing: Runner of its jobs.
        latest: What the page said last, as a list of one.
        quantities: What it measures.
    """

    browser: Browser = field(kw_only=True)
    channel: Channel = field(kw_only=True)
    timing: BrowserTiming = field(kw_only=True)
    latest: list[BrowserFacts] = field(kw_only=True)
    quantities: ClassVar[tuple[str, ...]] = (LATENCY,)

    @classmethod
    def of_browser(cls, folder: Path, browser: Browser, limits: AgentLimits) -> BrowserApi:
        """Return the agent of a browser, which keeps its files in a folder."""
        models, channel, latest = ModelStore(folder / "models", limits), Channel(), [browser.facts]
        timing = BrowserTiming(
            channel, models, lambda: latest[0], browser.facts.processor, limits.network_s
        )
        queue = JobQueue(folder / "jobs", limits)
        return cls(
            models, queue, timing, limits,
            browser=browser, channel=channel, timing=timing, latest=latest,
        )  # fmt: skip

    def _about(self) -> AgentReply:
        facts, away = self.latest[0], self.channel.away_s
        kinds: dict[str, str] = {}
        for runtime in BROWSER_RUNTIMES:
            missing = _NEEDS_WEBGPU if runtime.name == "webgpu" and not facts.webgpu else ""
            kinds |= {f"{BROWSER}-{runtime.name}-{each}": missing for each in runtime.formats}
        machine = {
            "device": facts.device,
            "cores": str(facts.cores or "unknown"),
            "memory": f"{facts.memory_gib:g} GiB" if facts.memory_gib else "unknown",
            "gpu": facts.webgpu or "none",
        }
        seen = "never open" if away is None else "open" if away < 5 else f"closed for {away:.0f} s"
        about = AgentDescription(
            machine,
            {"page": seen, "threads": "allowed" if facts.isolated else _NEEDS_ISOLATION},
            {BROWSER: self.browser.facts.processor},
            kinds,
            {"hwnas": hwnas.__version__, "browser": facts.browser},
            len(self.queue),
            self.quantities,
        )
        return AgentReply(200, about.to_json())


class HostApi:
    """Agents of all browsers, addressed by name: ``/NAME/v1/...``.

    Args:
        browsers: Registry of the browsers.
        limits: Limits on what each accepts.
    """

    def __init__(self, browsers: Browsers, limits: AgentLimits) -> None:
        self.browsers, self.limits = browsers, limits
        self._apis: dict[str, BrowserApi] = {}
        self._lock = threading.Lock()
        self._working = contextlib.ExitStack()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Do the jobs of all browsers until the context ends, those paired meanwhile too."""
        with self._working:
            for name in self.browsers.names():
                with contextlib.suppress(HwnasError):  # its file is damaged; pairing mends it
                    self.of(name)
            yield

    def of(self, name: str) -> BrowserApi | None:
        """Return the agent of a browser; None if no browser of this name is paired."""
        with self._lock:
            if name not in self._apis:
                browser = self.browsers.find(name)
                if browser is None:
                    return None
                self._start(browser)
            return self._apis[name]

    def pair(self, browser: Browser) -> None:
        """Save a browser that was paired, and start to do its jobs.

        If a browser of this name is paired already, only its key and facts change.
        """
        self.browsers.put(browser)
        with self._lock:
            known = self._apis.get(browser.name)
            if known is None:
                self._start(browser)
                return
            known.timing.processor = browser.facts.processor
            known.latest[0] = browser.facts
            self._apis[browser.name] = replace(known, browser=browser)

    def _start(self, browser: Browser) -> None:
        folder = self.browsers.folder(browser.name)
        api = BrowserApi.of_browser(folder, browser, self.limits)
        self._working.enter_context(api.working())
        self._apis[browser.name] = api

    def answer(self, request: AgentRequest) -> AgentReply:
        """Answer a host's request for one of the browsers."""
        name, slash, rest = request.path.removeprefix("/").partition("/")
        try:
            api = self.of(name) if slash else None
        except HwnasError as error:
            return refusal(503, error)
        if api is None:
            known = ", ".join(self.browsers.names()) or "none yet"
            return refusal(
                404,
                ConfigError(f"no browser is paired as {name[:40]!r}; paired browsers: {known}"),
            )
        return api.answer(replace(request, path=f"/{rest}"))
