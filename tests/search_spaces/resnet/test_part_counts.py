"""Operators of ResNets without a trace; test_space_conformance.py checks every space."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces import (
    DenseHead,
    OperatorCountTable,
    OperatorSignature,
    ResNetConfig,
    ResNetSpace,
    ResNetStage,
    resnet,
)

stages = st.builds(
    ResNetStage,
    channels=st.sampled_from([16, 32, 40, 64]),
    stride=st.sampled_from([1, 2]),
    depth=st.sampled_from([(1,), (2,), (1, 2), (1, 3)]),
    expand_ratio=st.sampled_from([(0.5,), (0.25, 0.5), (1,), (0.5, 1.5)]),
    block=st.sampled_from(["bottleneck", "basic", "fused", "inverted"]),
)


def steps_of(table: OperatorCountTable) -> list[dict[OperatorSignature, int]]:
    """Return the number of times that each network has each operator."""
    return [
        {step: int(n) for step, n in zip(table.steps, row, strict=True) if n}
        for row in table.counts.toarray()
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    stages=st.lists(stages, min_size=1, max_size=3),
    resolution=st.sampled_from([(33,), (32, 47)]),
    width=st.sampled_from([(1.0,), (0.5, 1.0, 1.5)]),
    stem=st.sampled_from([(1, 1), (3, 1), (7, 2), (5, 4), (7, 4)]),
    aspect=st.sampled_from([(1, 1), (2, 3), (5, 4)]),
    dense_head=st.none() | st.builds(DenseHead, st.sampled_from([2, 8]), st.just((8, 24))),
    stem_pool=st.booleans(),
    in_channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_resnet_steps_equal_those_of_a_trace_for_any_config(
    stages: list[ResNetStage], stem: tuple[int, int], seed: int, **others: object
) -> None:
    try:
        kernel_size, stride = stem
        config = ResNetConfig(
            tuple(stages),
            outputs=7,
            stem_channels=16,
            stem_kernel_size=kernel_size,
            stem_stride=stride,
            **others,
        )
    except ConfigError:
        assume(False)  # options that round to the same channels
    space, rng = ResNetSpace(config), random.Random(seed)
    networks = [space.sample(rng) for _ in range(3)]
    codes = np.array([space.encode(network) for network in networks], dtype=np.int64)
    traced = OperatorCountTable.of_workloads([space.workload(network) for network in networks])
    assert steps_of(space.steps(codes)) == steps_of(traced)


def test_resnet_counted_takes_seconds_for_100_000_networks() -> None:
    space = resnet((224, 224, 3), 1000)
    rng = np.random.default_rng(0)
    sizes = [len(choice.options) for choice in space.choices]
    codes = rng.integers(0, sizes, (100_000, len(sizes)))
    start = time.process_time()
    counted = space.counted(codes)
    assert time.process_time() - start < 3  # tracing them would take an hour
    assert len(np.unique(counted["macs"])) > 50_000
