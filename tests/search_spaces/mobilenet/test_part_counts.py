"""Operators of MobileNets without a trace; test_space_conformance.py checks every space."""

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
    MobileNetConfig,
    MobileNetSpace,
    OperatorCountTable,
    Stage,
    mobilenet,
)
from hwnas.search_spaces.mobilenet.presets import PRESETS

stages = st.builds(
    Stage,
    channels=st.sampled_from([8, 12, 16, 24]),
    stride=st.sampled_from([1, 2]),
    depth=st.sampled_from([(1,), (2,), (1, 2), (1, 3)]),
    kernel_size=st.sampled_from([(3,), (1, 5), (3, 5, 7)]),
    expand_ratio=st.sampled_from([(1,), (1, 4), (3, 6)]),
    squeeze_excite=st.booleans(),
    activation=st.sampled_from(["relu", "relu6", "hard_swish"]),
    operators=st.sampled_from([(), (), ("skip", "k3_e1_g2", "k3_e1", "k5_e3"), ("k3_e1", "k7_e6")]),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    stages=st.lists(stages, min_size=1, max_size=3),
    resolution=st.sampled_from([(17,), (16, 23)]),
    width=st.sampled_from([(1.0,), (0.5, 1.0, 1.4)]),
    stem_stride=st.sampled_from([1, 2]),
    in_channels=st.sampled_from([1, 3, 8]),
    aspect=st.sampled_from([(1, 1), (2, 3), (5, 4)]),
    dense_head=st.none() | st.builds(DenseHead, st.sampled_from([2, 8]), st.just((8, 24))),
    features=st.sampled_from([(20, True), (20, False), (0, True)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_mobilenet_steps_equal_those_of_a_trace_for_any_config(
    stages: list[Stage], seed: int, features: tuple[int, bool], **others: object
) -> None:
    try:
        config = MobileNetConfig(
            tuple(stages),
            outputs=7,
            head_channels=32,
            feature_channels=features[0],
            feature_bias=features[1],
            **others,
        )
    except ConfigError:
        assume(False)  # widths that round to the same channels, or too small an image
    space, rng = MobileNetSpace(config), random.Random(seed)
    networks = [space.sample(rng) for _ in range(3)]
    codes = np.array([space.encode(network) for network in networks], dtype=np.int64)
    traced = OperatorCountTable.of_workloads([space.workload(network) for network in networks])
    drafted = space.steps(codes)
    for table in (traced, drafted):
        order = np.argsort([repr(step) for step in table.steps])
        order = [i for i in order if table.counts[:, [i]].sum()]
        found = [table.steps[i] for i in order], table.counts.toarray()[:, order].tolist()
        if table is traced:
            expected = found
    assert found == expected


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_mobilenet_depth_counts_blocks(preset: str) -> None:
    space = mobilenet((224, 224, 3), 10, preset)
    rng = random.Random(0)
    networks = [space.sample(rng) for _ in range(5)]
    codes = np.array([space.encode(network) for network in networks], dtype=np.int64)
    blocks = [sum(len(stage.blocks) for stage in space.outline(each)) for each in networks]
    assert space.depth(codes.reshape(5, -1)).tolist() == blocks


def test_mobilenet_counted_takes_seconds_for_100_000_networks() -> None:
    space = mobilenet((28, 28, 1), 10)
    rng = np.random.default_rng(0)
    sizes = [len(choice.options) for choice in space.choices]
    codes = rng.integers(0, sizes, (100_000, len(sizes)))
    start = time.process_time()
    counted = space.counted(codes)
    assert time.process_time() - start < 3  # tracing them would take two hours
    assert len(np.unique(counted["macs"])) > 50_000
