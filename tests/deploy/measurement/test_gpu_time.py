from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from hwnas.deploy.measurement.gpu_time import GpuClock


class NVMLError(Exception):
    pass


@dataclass
class Card:
    """GPU: process ids that use it, and its utilisation in percent."""

    users: tuple[int, ...]
    busy: int


class Nvml:
    """Replacement of the module pynvml for a machine with the given GPUs."""

    NVMLError = NVMLError

    def __init__(self, *cards: Card) -> None:
        self.cards = cards
        self.broken: list[Card] = []

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        if card in self.broken:
            raise NVMLError
        return [SimpleNamespace(pid=pid) for pid in card.users]

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=card.busy)


def clock(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> GpuClock:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return GpuClock()


def test_gpu_clock_adds_the_busy_time_of_all_used_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, both, others = Card((7,), 50), Card((7, 9), 100), Card((9,), 100)
    found = clock(monkeypatch, Nvml(mine, both, others))
    found.sample({7, 8}, 2.0)
    assert found.seconds == 1.0 + 2.0
    mine.busy = 0
    both.users = (9,)
    found.sample({7, 8}, 2.0)
    assert found.seconds == 3.0


def test_gpu_clock_gives_none_for_processes_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clock(monkeypatch, Nvml(Card((9,), 100)))
    found.sample({7}, 1.0)
    assert found.seconds is None


def test_gpu_clock_gives_none_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clock(monkeypatch, None)
    found.sample({7}, 1.0)
    assert found.seconds is None


def test_gpu_clock_keeps_its_count_after_a_driver_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, other = Card((7,), 100), Card((7,), 50)
    nvml = Nvml(lost, other)
    found = clock(monkeypatch, nvml)
    found.sample({7}, 1.0)
    assert found.seconds == 1.0 + 0.5
    nvml.broken = [lost]
    found.sample({7}, 1.0)
    assert found.seconds == 1.0 + 2 * 0.5
