"""Does a latency on one runtime tell that on another, and do ten measurements suffice for each?

The same networks are timed on this machine in ONNX Runtime, OpenVINO, MNN and PyTorch, and in a
browser, Chromium, that runs them in WebAssembly with one and with two threads.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from experiments.chromium import opened
from experiments.foretold import judge
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.timed_networks import exported, latency_row, networks_to_time
from hwnas.deploy import Target, measure
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.web.serve import WebOptions
from hwnas.deploy.agent.web.serve import opened as web_agent
from hwnas.deploy.runtimes.ort_web_files import runtime_files
from hwnas.search_spaces import mobilenet

SPACE = mobilenet((64, 64, 3), 10, preset="small")
BROWSER = "chromium"
TARGETS = (
    "cpu-onnxruntime-fp32-b1-t1",
    "cpu-openvino-fp32-b1-t1",
    "cpu-mnn-fp32-b1-t1",
    "cpu-pytorch-fp32-b1-t1",
    f"{BROWSER}-ortweb-fp32-b1-t1",
    f"{BROWSER}-ortweb-fp32-b1-t2",
)
_LEARNED, _ASKED = "learned", "asked"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learned", type=int, default=10, metavar="N")
    parser.add_argument("--asked", type=int, default=20, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    counts = {_LEARNED: arguments.learned, _ASKED: arguments.asked}
    setting = Setting(
        arguments, {"space": SPACE.fingerprint, "targets": TARGETS, "networks": counts}
    )
    with browser():
        for seed in setting.seeds:
            for name in TARGETS:
                if not setting.observed(name, seed):
                    observe(setting, name, seed, counts)
            setting.answer(answers(setting, seed))
    setting.show()


@contextlib.contextmanager
def browser() -> Iterator[None]:
    """Pair Chromium on this machine as a device, until the context ends."""
    files = runtime_files()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        before, os.environ["HWNAS_HOME"] = os.environ.get("HWNAS_HOME"), str(place / "home")
        told: list[str] = []
        agent_options = WebOptions(
            "127.0.0.1", 0, 0, http=True, folder=place / "agent", runtime_files=files.folder
        )
        try:
            with (
                web_agent(agent_options, told.append) as agent,
                opened(place / "profile", agent.page_urls[0]) as page,
            ):
                (code,) = (line.partition(": ")[2] for line in told if "pairing code" in line)
                (token,) = (line.partition(": ")[2] for line in told if line.startswith("token"))
                page.wait_until("!document.getElementById('pair').hidden")
                page.evaluate(
                    f"(() => {{ document.getElementById('name').value = '{BROWSER}';"
                    f"document.getElementById('code').value = '{code}';"
                    "document.getElementById('confirm').click(); })()"
                )
                page.wait_until("!document.getElementById('work').hidden")
                address = f"{agent.host_url}/{BROWSER}"
                add_device(BROWSER, address, token, hardware="browser")
                yield
        finally:
            if before is None:
                del os.environ["HWNAS_HOME"]
            else:
                os.environ["HWNAS_HOME"] = before


def observe(setting: Setting, name: str, seed: int, counts: Mapping[str, int]) -> None:
    """Time the networks of a seed on a target, in one session."""
    rng = random.Random(seed)
    # The same networks everywhere: those that tell most about the first target.
    roles = {
        _LEARNED: networks_to_time(SPACE, TARGETS[0], counts[_LEARNED], seed),
        _ASKED: [SPACE.sample(rng) for _ in range(counts[_ASKED])],
    }
    print(f"seed {seed}: {name}", flush=True)
    models = exported(SPACE, [a for some in roles.values() for a in some], setting.work)
    measured = measure(models, Target.parse(name))
    setting.observations.put(
        latency_row(SPACE, a, measured[a.id], seed, {"role": role}, prefix=f"{name} {role} ")
        for role, some in roles.items()
        for a in some
    )


def answers(setting: Setting, seed: int) -> list[Row]:
    """Return rank correlations, losses on other runtimes, and errors of predictions."""
    asked = {name: of_role(setting, name, seed, _ASKED) for name in TARGETS}
    latencies = {name: np.array([row.value for row in rows]) for name, rows in asked.items()}
    macs = np.array([row.details["macs"] for row in asked[TARGETS[0]]])
    found = []
    for one, other in itertools.combinations(TARGETS, 2):
        rho = float(spearmanr(latencies[one], latencies[other]).statistic)
        found.append(Row("rank_correlation", f"{one} / {other}", seed, rho, "rho", len(macs)))
    for name, other in itertools.permutations(TARGETS, 2):
        loss = lost(latencies[name], latencies[other], macs)
        found.append(Row("hypervolume_lost", f"{name} on {other}", seed, loss, "fraction", 1))
    for name in TARGETS:
        rho = float(spearmanr(macs, latencies[name]).statistic)
        found.append(
            Row("rank_correlation", f"{name} / multiply-accumulates", seed, rho, "rho", len(macs))
        )
        known = of_role(setting, name, seed, _LEARNED)
        judged = judge(SPACE, Target.parse(name), known, asked[name], seed, f"{name} ")
        found += [row for row in judged if row.metric in ("spearman", "median_error")]
    return found


def of_role(setting: Setting, name: str, seed: int, role: str) -> list[Row]:
    """Return the observations of a target and a role, in the order of the networks' ids."""
    rows = [row for row in setting.observed(name, seed) if row.details["role"] == role]
    return sorted((replace(row) for row in rows), key=lambda row: row.subject.split()[-1])


def lost(here: np.ndarray, there: np.ndarray, macs: np.ndarray) -> float:
    """Return the hypervolume that the front of one runtime loses on another one.

    Multiply-accumulates stand for accuracy: a front has the networks with more of them, or a lower
    latency. The volume is that of the logarithms of both.
    """
    own, other = front(here, macs), front(there, macs)
    whole = volume(there[other], macs[other], there, macs)
    return 1 - volume(there[own], macs[own], there, macs) / whole


def front(latencies: np.ndarray, macs: np.ndarray) -> np.ndarray:
    """Return the indices of networks that no other has both more MACs and less latency than."""
    order = np.lexsort((latencies, -macs))
    kept, best = [], np.inf
    for i in order:
        if latencies[i] < best:
            kept.append(i)
            best = latencies[i]
    return np.array(kept)


def volume(
    latencies: np.ndarray, macs: np.ndarray, all_latencies: np.ndarray, all_macs: np.ndarray
) -> float:
    """Return the dominated area of log latency and log MACs, up to the worst of all networks."""
    x = np.log(all_latencies.max()) - np.log(latencies)
    y = np.log(macs) - np.log(all_macs.min())
    area, height = 0.0, 0.0
    for i in np.argsort(-x):
        area += x[i] * max(0.0, y[i] - height)
        height = max(height, y[i])
    return area


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
