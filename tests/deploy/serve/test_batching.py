import gc
import threading
import time
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.serve import Batcher, RequestRefusal
from hwnas.errors import ArtifactError

Run = Callable[[NDArray[np.float32]], NDArray[Any]]


def images(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)[:, None]


class Gate:
    """Network that doubles its inputs, once the test opens the gate."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def __call__(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        self.entered.set()
        assert self.open.wait(10)
        self.batches.append(len(inputs))
        return 2 * inputs


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 8))
def test_batcher_returns_to_each_request_its_own_outputs(sizes: list[int], most: int) -> None:
    batches: list[int] = []
    batcher = Batcher(
        lambda x: 2 * x, most, 0.001, sum(sizes), lambda size, seconds: batches.append(size)
    )
    starts = np.cumsum([0, *sizes])
    sent = [images(*range(a, b)) for a, b in pairwise(starts)]
    answers = [batcher.submit(each) for each in sent]
    for each, answer in zip(sent, answers, strict=True):
        assert np.array_equal(answer.result(10), 2 * each)
    batcher.close()
    assert sum(batches) == sum(sizes)
    assert max(batches) <= most


def test_batcher_combines_requests_that_arrive_during_a_run() -> None:
    gate = Gate()
    batcher = Batcher(gate, 4, 0, 100)
    first = batcher.submit(images(0))
    assert gate.entered.wait(10)
    others = [batcher.submit(images(i)) for i in range(1, 7)]
    assert batcher.waiting == 6
    gate.open.set()
    assert [float(each.result(10)[0, 0]) for each in (first, *others)] == [0, 2, 4, 6, 8, 10, 12]
    assert gate.batches == [1, 4, 2]
    batcher.close()


def test_batcher_waits_a_limited_time_to_fill_a_batch() -> None:
    gate = Gate()
    gate.open.set()
    batcher = Batcher(gate, 2, 0.2, 100)
    began = time.monotonic()
    batcher.submit(images(1)).result(10)
    assert time.monotonic() - began >= 0.2
    pair = [batcher.submit(images(i)) for i in (1, 2)]
    for each in pair:
        each.result(10)
    assert gate.batches == [1, 2]
    batcher.close()


def test_batcher_refuses_requests_beyond_its_queue() -> None:
    gate = Gate()
    batcher = Batcher(gate, 2, 0, 3)
    running = batcher.submit(images(0))
    assert gate.entered.wait(10)
    waiting = batcher.submit(images(1, 2))
    with pytest.raises(RequestRefusal, match="2 images wait") as refused:
        batcher.submit(images(3, 4))
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    with pytest.raises(RequestRefusal, match="at most 3") as refused:
        batcher.submit(images(1, 2, 3, 4))
    assert refused.value.status == 413
    gate.open.set()
    batcher.close()
    assert running.done()
    assert waiting.result().tolist() == [[2], [4]]
    with pytest.raises(RequestRefusal, match="shutting down"):
        batcher.submit(images(5))


def test_batcher_frees_the_memory_of_cancelled_requests() -> None:
    """Answered requests are freed, too; neither kind needs the garbage collector."""
    gate, reasons = Gate(), list[str]()
    batcher = Batcher(gate, 1, 0, 10, dropped=reasons.append)
    first, second, third = images(0), images(1), images(2, 3)
    kept = [weakref.ref(each) for each in (first, second, third)]
    running = batcher.submit(first)
    assert gate.entered.wait(10)
    cancelled, waits = batcher.submit(second), batcher.submit(third)
    del first, second, third
    gc.disable()
    try:
        assert cancelled.cancel()
        assert batcher.waiting == 2
        assert kept[1]() is None
        gate.open.set()
        assert running.result(10).tolist() == [[0]]
        assert waits.result(10).tolist() == [[4], [6]]
        batcher.close()
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()
    assert reasons == ["late"]
    assert gate.batches == [1, 1, 1]


@pytest.mark.parametrize("broken", [lambda x: 1 / 0, lambda x: x[:0]])
def test_batcher_passes_on_an_error_and_continues(broken: Run) -> None:
    fails = [True, False]
    batcher = Batcher(lambda x: broken(x) if fails.pop(0) else x, 8, 0, 100)
    with pytest.raises((ZeroDivisionError, ArtifactError)):
        batcher.submit(images(1)).result(10)
    assert batcher.submit(images(1)).result(10).tolist() == [[1]]
    batcher.close()
