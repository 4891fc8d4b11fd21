"""Limits of threads are noticed, so that they are not set again in every step."""

import torch

from hwnas.search.engine.threads import has_one_thread, one_thread


def test_one_thread_is_noticed_inside_and_not_outside() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert not has_one_thread()
        with one_thread():
            assert has_one_thread()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
