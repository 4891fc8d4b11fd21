from __future__ import annotations

import pytest
import torch

from hwnas.search.evolution.chance import happening, rows_without


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.001, 0.3, 0.97])
def test_happening_draws_each_event_at_the_given_rate(rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    trials, times = 50, 4_000
    counts = torch.zeros(trials)
    for _ in range(times):
        events = happening(trials, rate, generator)
        assert events.unique().numel() == len(events)
        counts[events] += 1
    error = (rate * (1 - rate) / times) ** 0.5
    assert counts.mean().item() / times == pytest.approx(rate, abs=4 * error / trials**0.5)
    assert ((counts / times - rate).abs() < 4.5 * error).all()


def test_happening_always_draws_a_certain_event() -> None:
    assert happening(5, 1.0, torch.Generator()).tolist() == [0, 1, 2, 3, 4]


def test_rows_without_lists_rows_without_an_event() -> None:
    assert rows_without(torch.tensor([0, 2, 7]), 4, 3).tolist() == [1, 3]
