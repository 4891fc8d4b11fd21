"""Merging of similar tokens."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.search_spaces import VitSpace, vit
from hwnas.search_spaces.layers import TokenMerging, tokens_after

TOKENS, SHARES = st.integers(1, 30), st.floats(0, 0.5)


@given(tokens=TOKENS, share=SHARES)
def test_at_least_half_of_the_tokens_remain(tokens: int, share: float) -> None:
    left = tokens_after(tokens, share)
    assert tokens / 2 <= left <= tokens
    assert abs(tokens - left - tokens * share) <= 1


@settings(max_examples=30)
@given(tokens=TOKENS, share=SHARES, seed=st.integers(0, 99))
def test_merging_keeps_so_many_tokens_within_the_range_of_those_before(
    tokens: int, share: float, seed: int
) -> None:
    x = torch.randn(2, tokens, 5, generator=torch.Generator().manual_seed(seed))
    merged = TokenMerging(share)(x)
    assert merged.shape == (2, tokens_after(tokens, share), 5)
    assert (merged.amax(1) <= x.amax(1) + 1e-6).all()
    assert (merged.amin(1) >= x.amin(1) - 1e-6).all()


def test_merging_replaces_the_most_similar_tokens_by_their_mean() -> None:
    """Tokens 0, 2 and 4 are matched with 1, 3 and 5; 2 and 4 are most similar to 3."""
    x = torch.tensor(
        [[1.0, 0, 0], [0, 1.0, 0.9], [0, 0, 2.0], [0, 0, 1.0], [0, 0.1, 4.0], [-1.0, 0.2, 0]]
    )
    merged = TokenMerging(1 / 3)(x[None])[0]
    mean = (x[2] + x[3] + x[4]) / 3
    torch.testing.assert_close(merged, torch.stack([x[0], x[1], mean, x[5]]))


def test_equal_tokens_remain_equal() -> None:
    x = torch.ones(1, 8, 3)
    torch.testing.assert_close(TokenMerging(0.25)(x), torch.ones(1, 6, 3))


def test_vit_that_merges_more_costs_less_with_the_same_weights() -> None:
    space = vit((32, 32, 3), 10, merging=(0.25, 0.1, 0))
    assert isinstance(space, VitSpace)
    values = space.largest().as_dict()
    found = [
        space.workload(space.architecture({**values, "merging": share})) for share in (0.25, 0.1, 0)
    ]
    macs = [workload.macs for workload in found]
    assert macs == sorted(macs)
    assert macs[0] < macs[1] < macs[2]
    assert len({workload.params for workload in found}) == 1
    plain = vit((32, 32, 3), 10)
    assert space.fingerprint != plain.fingerprint
    assert "merging" not in plain.identity
