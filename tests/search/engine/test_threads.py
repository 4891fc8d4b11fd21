"""Detection of a thread limit, so that it is not set again in every step."""

import torch

from hwnas.search.engine.threads import has_one_thread, one_thread


def test_has_one_thread_is_true_only_inside_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert not has_one_thread()
        with one_thread():
            assert has_one_thread()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
