"""The conformance suite of search spaces. A new space is added to `SPACES` and gets all checks."""

import itertools
import json
import os
import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib.util import find_spec

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import (
    Architecture,
    Choice,
    ChoiceCondition,
    HieraConfig,
    HieraSpace,
    HybridConfig,
    HybridSpace,
    HybridStage,
    MobileNetConfig,
    MobileNetSpace,
    OperatorCountTable,
    OperatorSignature,
    ResNetConfig,
    ResNetSpace,
    ResNetStage,
    SearchSpace,
    Stage,
    Supernet,
    UnionSpace,
    VitConfig,
    VitSpace,
    batch_norms,
    channels,
    decoder,
    edsr,
    elastic,
    experts,
    hiera,
    hybrid,
    mobilenet,
    nasbench201,
    resnet,
    simplenet,
    trace,
    union,
    vit,
)
from hwnas.search_spaces.dense_head import DenseHead
from hwnas.search_spaces.early_exit import EarlyExitConfig, EarlyExitNetwork, EarlyExitSpace
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace
from hwnas.search_spaces.supernet.block_space import BlockSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.supernet.blueprint import blueprint


class GatedBlock(nn.Module):
    """Residual block of convolution, normalisation and an optional gate."""

    def __init__(self, width: int, kernel_size: int, squeezed: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2)
        self.norm = nn.BatchNorm2d(width)
        if squeezed:
            self.gate = nn.Sequential(nn.Linear(width, squeezed), nn.Linear(squeezed, width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x)).relu()
        if hasattr(self, "gate"):
            y = y * self.gate(y.mean((2, 3))).sigmoid()[:, :, None, None]
        return x + y


class GatedNetwork(nn.Module):
    def __init__(self, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2)
        self.blocks = nn.Sequential(*blocks)
        self.outputs = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.outputs(self.blocks(self.stem(x)).mean((2, 3)))
        return outputs


class GatedSpace(SearchSpace):
    """Space as a user may write it, with text options and nested conditions."""

    name = "gated"
    choices = (
        Choice("width", (6, 8, 12)),
        Choice("depth", (0, 1, 2)),
        *itertools.chain.from_iterable(
            (
                Choice(f"{i}.kernel", (1, 3), ChoiceCondition("depth", tuple(range(i + 1, 3)))),
                Choice(
                    f"{i}.gate", ("no", "yes"), ChoiceCondition("depth", tuple(range(i + 1, 3)))
                ),
                Choice(f"{i}.squeezed", (2, 4), ChoiceCondition(f"{i}.gate", ("yes",))),
            )
            for i in range(2)
        ),
    )

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 3, 9, 9

    def build(self, architecture: Architecture) -> GatedNetwork:
        values = self.check(architecture).as_dict()
        width = int(values["width"])
        blocks: list[nn.Module] = [
            GatedBlock(width, int(values[f"{i}.kernel"]), int(values.get(f"{i}.squeezed", 0)))
            for i in range(int(values["depth"]))
        ]
        return GatedNetwork(width, blocks)


class SiblingSpace(BlockSpace):
    """Space of blocks as a user may write it; blocks between fixed ones may be absent."""

    name = "siblings"
    choices = (Choice("width", (4, 8)), Choice("depth", (1, 2, 4)), Choice("kernel", (1, 3)))

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        width, sizes = {"width": "width"}, {"width": "width", "kernel_size": "kernel"}
        make = partial(GatedBlock, squeezed=0)
        blocks = (BlockSpec(f"block{b}", make, sizes, "depth", b + 1) for b in range(4))
        outputs = BlockSpec("outputs", lambda width: nn.Linear(width, 5), width)
        return BlockSpec("stem", lambda width: nn.Conv2d(3, width, 3), width), *blocks, outputs

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 3, 6, 6

    def frame(self, blocks: Mapping[str, nn.Module]) -> nn.Sequential:
        between = {name: block for name, block in blocks.items() if name.startswith("block")}
        pool, flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        parts = {"stem": blocks["stem"], "activation": nn.ReLU(), **between, "pool": pool}
        return nn.Sequential(OrderedDict(parts, flat=flat, outputs=blocks["outputs"]))


class Joined(nn.Module):
    """Plain model with a residual and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.block = GatedBlock(16, 3, 0)
        self.left = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.right = nn.Conv2d(16, 16, 1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.outputs = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem(x).relu())
        y = self.norm(torch.cat([self.left(x), self.right(x)], 1)).relu()
        outputs: Tensor = self.outputs(y.mean((2, 3)))
        return outputs


def elastic_space() -> SearchSpace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return elastic(Joined(), torch.rand(1, 3, 8, 8))


COUNTABLE = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1, 2), (3, 5), (3,)),
            Stage(16, 2, (1, 2), (3,), (2, 3), squeeze_excite=True),
        ),
        resolution=(6, 8),
        head_channels=16,
        feature_channels=16,
        stem_channels=8,
        outputs=3,
    )
)

LAYERWISE = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1,), operators=("skip", "k3_e1_g2", "k3_e1", "k5_e3"), activation="relu6"),
            Stage(16, 2, (1, 2), operators=("skip", "k3_e1_g2", "k5_e3")),
        ),
        resolution=(7,),
        head_channels=16,
        feature_channels=0,
        stem_channels=8,
        outputs=3,
        activation="relu",
    )
)

RESNET = ResNetSpace(
    ResNetConfig(
        stages=(
            ResNetStage(32, 1, (1, 2), (0.5, 1)),
            ResNetStage(48, 2, (1, 2), (0.5, 1), "basic"),
        ),
        resolution=(7, 8),
        width=(0.5, 1.0),
        stem_channels=16,
        stem_kernel_size=3,
        stem_stride=1,
        outputs=3,
    )
)

COUNTABLE_VIT = VitSpace(
    VitConfig(
        depth=(1, 2),
        width=(16, 24),
        heads=(1, 2),
        mlp_ratio=(2,),
        rank=(0.5, 1),
        patch_size=(4, 2),
        resolution=(8,),
        head_width=8,
        outputs=3,
    )
)

COUNTABLE_HIERA = HieraSpace(
    HieraConfig(
        depth=((1,), (1, 2)),
        width=(16, 24),
        heads=(1, 2),
        mlp_ratio=(2,),
        local_stages=(1, 0),
        mask_unit=2,
        patch_size=2,
        resolution=(8, 12),
        head_width=8,
        outputs=3,
    )
)

OPERATORS = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1, 2), operators=("skip", "k3_e1", "k3_e2_g2", "k5_e2")),
            Stage(16, 2, kernel_size=(3, 5), expand_ratio=(2, 3)),
            Stage(16, 1, operators=("k3_e1_g2", "k3_e3")),
        ),
        resolution=(8,),
        width=(0.5, 1),
        stem_channels=8,
        stem_stride=1,
        head_channels=16,
        feature_channels=0,
        operator_weights="own",
    )
)
"""Operators with weights of their own, beside sizes that share them."""

COUNTABLE_HYBRID = HybridSpace(
    HybridConfig(
        stages=(
            HybridStage(8, 1, (1, 2), expand_ratio=(2, 4), fused="all"),
            HybridStage(
                16,
                2,
                (1, 3),
                ("convolution", "attention", "both"),
                (3,),
                (1, 2),
                "first",
                2,
            ),
        ),
        resolution=(6,),
        width=(0.5, 1),
        head_width=4,
        head_channels=16,
        feature_channels=16,
        stem_channels=8,
        stem_stride=1,
        outputs=3,
    )
)

COUNTABLE_EXPERTS = experts(
    (8, 8, 1),
    6,
    preset="tiny",
    experts=2,
    activation="piecewise-gelu",
    depth=(1, 2),
    width=(16, 24),
    heads=(1,),
    mlp_ratio=(1, 2),
    patch_size=(4,),
    head_width=8,
    tasks={"kind": 3, "turn": 2, "side": 1},
)

SPACES: dict[str, SearchSpace] = {
    "mobilenet-countable": COUNTABLE,
    "mobilenet-layerwise": LAYERWISE,
    "mobilenet-tiny": mobilenet((8, 8, 1), 10),
    "mobilenet-small": mobilenet((14, 14, 1), 10, preset="small"),
    "gated": GatedSpace(),
    "siblings": SiblingSpace(),
    "nasbench201": nasbench201((8, 8, 3), 4, channels=4, cells=1),
    "nasbench201-own": nasbench201((8, 8, 3), 4, channels=4, cells=1, operator_weights="own"),
    "mobilenet-own": OPERATORS,
    "quantised-own": QuantisedSpace(OPERATORS),
    "mobilenet-branches": mobilenet(
        (16, 16, 1),
        4,
        stages=(Stage(8, 2, (2,), operators=("k3_e1", "k5_e2_b", "k9_e2_b")),),
        resolution=(16,),
        width=(0.5, 1.0),
        stem_channels=16,
        head_channels=16,
        feature_channels=0,
        operator_weights="own",
    ),
    "mobilenet-deformable": mobilenet(
        (16, 12, 1),
        4,
        stages=(
            Stage(8, 2, (2,), operators=("skip", "k3_e1_d", "k3_e2")),
            Stage(16, 1, operators=("k3_e1", "k3_e2_d")),
        ),
        resolution=(16,),
        width=(0.5, 1.0),
        stem_channels=16,
        head_channels=16,
        feature_channels=0,
        operator_weights="own",
    ),
    "resnet-countable": RESNET,
    "resnet-tiny": resnet((8, 8, 1), 10),
    "simplenet-tiny": simplenet((8, 8, 1), 10),
    "simplenet-slim": simplenet((20, 20, 3), 4, preset="slim"),
    "channels-resnet": channels((8, 8, 3), 4, model="resnet20", ratios=(0.5, 1)),
    "hybrid-countable": COUNTABLE_HYBRID,
    "hybrid-tiny": hybrid((8, 8, 1), 10),
    "hiera-countable": COUNTABLE_HIERA,
    "hiera-tiny": hiera((8, 8, 1), 10),
    "hiera-tall-table": hiera((24, 16, 1), 4, preset="tiny", position="table"),
    "experts-countable": COUNTABLE_EXPERTS,
    "experts-tiny": experts((8, 8, 1), 7, expert_every=1, tasks={"kind": 4, "turn": 3}),
    "vit-countable": COUNTABLE_VIT,
    "vit-tiny": vit((8, 8, 1), 10),
    "mobilenet-wide": mobilenet((9, 18, 1), 4),
    "vit-merging": vit((12, 8, 1), 4, preset="tiny", depth=(1, 3), merging=(0.3, 0.1, 0)),
    "vit-uneven": vit((12, 12, 1), 4, preset="tiny", patch_size=(6, 4, 2), resolution=(18,)),
    "vit-wide": vit((9, 18, 1), 4),
    "vit-tall-table": vit((24, 16, 1), 4, preset="deit-tiny", depth=(1, 2), patch_size=(4,)),
    "simplenet-tall": simplenet((20, 12, 3), 4, preset="tiny"),
    "resnet-tall": resnet((24, 16, 1), 4, preset="small"),
    "hybrid-wide": hybrid((16, 24, 3), 4, preset="small"),
    "decoder-tiny": decoder((1, 12, 1), 9, preset="tiny"),
    "edsr-tiny": edsr((8, 8, 1), 10, preset="tiny"),
    "edsr-mixed": edsr((6, 9, 3), 3, preset="mixed", upscale=3),
    "edsr-adaptive": edsr((8, 8, 3), 3, channels=(8, 16), depth=(1, 2), normalisation="adaptive"),
    "edsr-same-size": edsr((8, 8, 3), 3, channels=(8, 16), depth=(1, 2), upscale=1),
    "quantised-edsr": QuantisedSpace(edsr((8, 8, 3), 3, preset="small")),
    "mobilenet-dense": mobilenet((19, 25, 3), 7, preset="small", maps=True),
    "resnet-dense": resnet(
        (19, 19, 1), 5, preset="inverted", dense_head=DenseHead(4, (8, 16), layers=1)
    ),
    "hybrid-dense": hybrid((19, 19, 3), 5, preset="small", maps=True),
    "quantised-mobilenet": QuantisedSpace(
        mobilenet((8, 8, 1), 10),
        QuantisationConfig((2, 8, 32), (4, 32), ("tensor", "channel"), ("symmetric", "asymmetric")),
    ),
    "quantised-gated": QuantisedSpace(GatedSpace()),
    "quantised-sparse": QuantisedSpace(
        mobilenet((8, 8, 1), 10), QuantisationConfig((8, 32), (8,), sparsity=("2of4", "dense"))
    ),
    "quantised-hiera": QuantisedSpace(hiera((8, 8, 1), 10)),
    "quantised-vit": QuantisedSpace(vit((8, 8, 1), 10)),
    "quantised-one-bit": QuantisedSpace(
        mobilenet((8, 8, 1), 10), QuantisationConfig((1, 8), (1, 8), binarisation="react")
    ),
    "early-exit-mobilenet": EarlyExitSpace(mobilenet((8, 8, 1), 10)),
    "early-exit-own": EarlyExitSpace(OPERATORS, EarlyExitConfig((0.4, 0.6), 1)),
    "early-exit-resnet": EarlyExitSpace(RESNET),
    "early-exit-vit": EarlyExitSpace(vit((8, 8, 1), 10, depth=(2, 3, 4))),
    "early-exit-hiera": EarlyExitSpace(hiera((8, 8, 1), 10)),
    "early-exit-hybrid": EarlyExitSpace(hybrid((8, 8, 1), 10)),
    "early-exit-simplenet": EarlyExitSpace(simplenet((8, 8, 1), 10)),
}
if find_spec("torch_pruning") is not None:
    SPACES["elastic"] = elastic_space()
LARGE: dict[str, SearchSpace] = {
    "mobilenet-large": mobilenet((224, 224, 3), 1000),
    "ofa-w1.0": mobilenet((224, 224, 3), 1000, "ofa-w1.0"),
    "fbnet": mobilenet((224, 224, 3), 1000, "fbnet"),
    "proxyless": mobilenet((224, 224, 3), 1000, "proxyless"),
    "resnet-50": resnet((224, 224, 3), 1000),
    "simplenet-full": simplenet((32, 32, 3), 10),
    "hybrid-large": hybrid((224, 224, 3), 1000),
    "hiera-large": hiera((224, 224, 3), 1000),
    "vit-large": vit((224, 224, 3), 1000),
}
UNIONS: dict[str, SearchSpace] = {
    "union": UnionSpace({"deep": COUNTABLE, "wide": RESNET}),
    "union-cpu": union((32, 32, 3), 10, "cpu", resolution=(32,)),
}
"""Without a supernet."""
EVERY = SPACES | LARGE | UNIONS
COUNTED = [name for name, space in SPACES.items() if space.size() < 2000]
RECOMPUTED = "import runpy, sys; print(runpy.run_path(sys.argv[1])['samples_of_all_spaces']())"

every_space = pytest.mark.parametrize("space", EVERY.values(), ids=EVERY)
CONDITIONAL = {n: s for n, s in EVERY.items() if any(c.when for c in s.choices)}
conditional_space = pytest.mark.parametrize("space", CONDITIONAL.values(), ids=CONDITIONAL)
runnable_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
BLOCKS = {name: space for name, space in SPACES.items() if space.block_specs}
block_space = pytest.mark.parametrize("space", BLOCKS.values(), ids=BLOCKS)
seeds = st.integers(0, 2**32 - 1)
OUT_OF_RANGE = (-1, 99, 0.5, float("nan"))  # as the position of an option


def samples_of_all_spaces() -> str:
    """Return the ids of three sampled architectures of each space, as JSON."""
    rng = random.Random(7)
    return json.dumps({n: [s.sample(rng).id for _ in range(3)] for n, s in SPACES.items()})


def sampled(space: SearchSpace, seed: int) -> Architecture:
    return space.sample(random.Random(seed))


def enumerated(space: SearchSpace) -> Iterator[Architecture]:
    for options in itertools.product(*(choice.options for choice in space.choices)):
        names = [choice.name for choice in space.choices]
        yield space.architecture(dict(zip(names, options, strict=True)))


def images(space: SearchSpace, architecture: Architecture, batch: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *space.input_shape(architecture), generator=generator)


# Architectures and vectors


@every_space
@settings(max_examples=30)
@given(seed=seeds)
def test_decode_is_the_inverse_of_encode(space: SearchSpace, seed: int) -> None:
    architecture = sampled(space, seed)
    assert space.decode(space.encode(architecture)) == architecture


@every_space
@settings(max_examples=30)
@given(data=st.data())
def test_decode_makes_a_member_of_every_vector_in_range(
    space: SearchSpace, data: st.DataObject
) -> None:
    vector = [data.draw(st.integers(0, len(choice.options) - 1)) for choice in space.choices]
    architecture = space.decode(vector)
    assert space.check(architecture) == architecture
    assert space.decode(space.encode(architecture)) == architecture


@every_space
@settings(max_examples=20)
@given(seed=seeds)
def test_canonical_codes_equal_those_of_decoded_networks(space: SearchSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = [len(choice.options) for choice in space.choices]
    codes = rng.integers(0, options, (8, len(options)))
    before = codes.copy()
    found = space.canonical(codes)
    assert found.tolist() == [space.encode(space.decode(code)).tolist() for code in codes]
    assert (codes == before).all()
    assert space.canonical(codes[:0]).shape == (0, len(options))


@every_space
def test_canonical_refuses_a_code_out_of_range_with_choice_and_row(space: SearchSpace) -> None:
    codes = np.zeros((3, len(space.choices)))
    for bad in OUT_OF_RANGE:
        codes[1, 0] = bad
        message = rf"{space.choices[0].name}: index .* of row 1 is not in"
        with pytest.raises(ConfigError, match=message):
            space.canonical(codes)
    with pytest.raises(ConfigError, match=rf"expected \(N, {len(space.choices)}\)"):
        space.canonical(codes[0])


@every_space
def test_decode_refuses_an_index_out_of_range_and_names_the_choice(space: SearchSpace) -> None:
    for bad in OUT_OF_RANGE:
        vector = [bad] + [0] * (len(space.choices) - 1)
        with pytest.raises(ConfigError, match=space.choices[0].name):
            space.decode(vector)


@every_space
def test_decode_refuses_a_vector_of_the_wrong_length(space: SearchSpace) -> None:
    with pytest.raises(ConfigError, match=rf"expected \({len(space.choices)},\)"):
        space.decode([0] * (len(space.choices) + 1))


@every_space
@settings(max_examples=20)
@given(seed=seeds)
def test_architecture_survives_conversion_to_json(space: SearchSpace, seed: int) -> None:
    architecture = sampled(space, seed)
    read = Architecture.from_json(json.loads(json.dumps(architecture.to_json())))
    assert read == architecture
    assert read.id == architecture.id


@every_space
def test_space_refuses_an_architecture_of_another_space(space: SearchSpace) -> None:
    foreign = replace(space.smallest(), space="another-00000000")
    for use in (space.check, space.encode, space.build, lambda a: space.mutate(a, random.Random())):
        with pytest.raises(ConfigError, match="another-00000000"):
            use(foreign)


@every_space
def test_architecture_refuses_missing_unknown_and_forbidden_values(space: SearchSpace) -> None:
    values = space.largest().as_dict()
    first = space.choices[0]
    with pytest.raises(ConfigError, match=f"no value for {first.name}"):
        space.architecture({k: v for k, v in values.items() if k != first.name})
    with pytest.raises(ConfigError, match="'colour'"):
        space.architecture({**values, "colour": 1})
    with pytest.raises(ConfigError, match=f"{first.name} is -7; this space allows"):
        space.architecture({**values, first.name: -7})


@conditional_space
def test_architecture_ignores_choices_without_effect(space: SearchSpace) -> None:
    smallest = space.smallest().as_dict()
    without_effect = [choice for choice in space.choices if choice.name not in smallest]
    assert without_effect
    for choice in without_effect:
        for option in choice.options:
            assert space.architecture({**smallest, choice.name: option}) == space.smallest()


# Costs of many networks


def steps_of(table: OperatorCountTable) -> list[dict[OperatorSignature, int]]:
    """Return the number of times that each network has each operator."""
    return [
        {step: int(n) for step, n in zip(table.steps, row, strict=True) if n}
        for row in table.counts.toarray()
    ]


@pytest.mark.slow
@every_space
def test_steps_of_extreme_networks_equal_those_of_a_trace(space: SearchSpace) -> None:
    steps_are_traced(space, [space.smallest(), space.largest()])


@pytest.mark.slow
@every_space
@settings(max_examples=3)
@given(seed=seeds)
def test_steps_of_a_sampled_network_equal_those_of_a_trace(space: SearchSpace, seed: int) -> None:
    steps_are_traced(space, [sampled(space, seed)])


def steps_are_traced(space: SearchSpace, networks: list[Architecture]) -> None:
    codes = np.array([space.encode(network) for network in networks])
    table, counted = space.steps(codes), space.counted(codes)
    workloads = [space.workload(network) for network in networks]
    traced = steps_of(OperatorCountTable.of_workloads(workloads))
    assert steps_of(space.operator_counts(networks)) == traced
    if table is None:
        assert (counted, space.depth(codes)) == ({}, None)
        return
    assert steps_of(table) == traced
    assert counted["macs"].tolist() == table.macs.tolist() == [w.macs for w in workloads]
    assert counted["params"].tolist() == [w.params for w in workloads]
    assert counted["weight_bytes"].tolist() == [w.weight_bytes for w in workloads]


@pytest.mark.slow
def test_steps_are_known_for_all_spaces_of_hwnas() -> None:
    unknown = {
        "gated",
        "siblings",
        "quantised-gated",
    }  # the two spaces above, as users may write them
    for name, space in EVERY.items():
        codes = np.array([space.encode(space.smallest())])
        # Operators of a network with an exit run for some images only.
        assert (space.steps(codes) is None) == (name in unknown or name.startswith("early-exit"))


@every_space
def test_steps_do_not_depend_on_choices_that_have_no_effect(space: SearchSpace) -> None:
    options = [len(choice.options) for choice in space.choices]
    codes = np.random.default_rng(0).integers(0, options, (50, len(options)))
    table, canonical = space.steps(codes), space.steps(space.canonical(codes))
    if table is not None and canonical is not None:
        assert steps_of(table) == steps_of(canonical)


# Sampling and variation


@every_space
@settings(max_examples=20)
@given(seed=seeds)
def test_sample_repeats_for_the_same_seed(space: SearchSpace, seed: int) -> None:
    assert sampled(space, seed) == sampled(space, seed)


@pytest.mark.slow
def test_sample_is_the_same_in_another_process() -> None:
    """The process has another hash seed, so nothing may depend on the order of a set."""
    done = subprocess.run(
        [sys.executable, "-c", RECOMPUTED, __file__],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(samples_of_all_spaces())


@every_space
def test_sample_reaches_every_option(space: SearchSpace) -> None:
    rng = random.Random(0)
    seen = {pair for _ in range(600) for pair in space.sample(rng).values}
    assert seen == {(choice.name, option) for choice in space.choices for option in choice.options}


@every_space
@settings(max_examples=30)
@given(seed=seeds, rate=st.none() | st.floats(0.01, 1.0))
def test_mutate_returns_another_member(space: SearchSpace, seed: int, rate: float | None) -> None:
    parent = sampled(space, seed)
    child = space.mutate(parent, random.Random(seed), rate)
    assert child != parent
    assert space.check(child) == child


@every_space
def test_mutate_refuses_a_rate_out_of_range(space: SearchSpace) -> None:
    for rate in (0.0, -0.1, 1.5):
        with pytest.raises(ConfigError, match="mutation rate"):
            space.mutate(space.smallest(), random.Random(0), rate)


@every_space
@settings(max_examples=30)
@given(seed=seeds)
def test_crossover_takes_each_option_from_a_parent(space: SearchSpace, seed: int) -> None:
    rng = random.Random(seed)
    a, b = space.sample(rng), space.sample(rng)
    child = space.crossover(a, b, rng)
    assert space.check(child) == child
    for name, option in child.values:
        inherited = {parent.as_dict()[name] for parent in (a, b) if name in parent.as_dict()}
        assert not inherited or option in inherited
    assert space.crossover(a, a, rng) == a


@every_space
def test_suggest_returns_the_member_of_an_optuna_trial(space: SearchSpace) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(3):
        trial = study.ask()
        architecture = space.suggest(trial)
        assert list(trial.params) == [choice.name for choice in space.choices]
        assert space.architecture(trial.params) == architecture


# Equal networks, equal ids


@pytest.mark.parametrize("name", COUNTED)
def test_size_is_the_number_of_different_architectures(name: str) -> None:
    space = SPACES[name]
    assert space.size() == len(set(enumerated(space)))


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_architecture_ids_differ_exactly_if_networks_differ(name: str) -> None:
    """A module's text contains its parts and sizes; with the input shape, it identifies it."""
    space = SPACES[name]
    members = set(enumerated(space))
    networks = {(str(space.build(a)), space.input_shape(a)) for a in members}
    assert len(networks) == len({a.id for a in members}) == len(members)


@every_space
def test_largest_and_smallest_bound_the_parameters(space: SearchSpace) -> None:
    def params(architecture: Architecture) -> int:
        with blueprint():
            network: nn.Module = space.build(architecture)
        if isinstance(network, EarlyExitNetwork):
            network = network.network  # its exit adds weights, but lowers the cost
        return sum(p.numel() for p in network.parameters())

    middle = [params(sampled(space, seed)) for seed in range(5)]
    assert params(space.smallest()) <= min(middle)
    assert max(middle) <= params(space.largest())


# Weight sharing


@contextmanager
def cumulative_average(network: nn.Module) -> Iterator[None]:
    """Batch normalisations of ``network`` in training mode, as recalibration needs them."""
    norms = batch_norms(network)
    before = [(norm.momentum, norm.training) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    yield
    for norm, (momentum, training) in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.train(training)


def recalibrate(network: nn.Module, batches: list[Tensor]) -> None:
    with cumulative_average(network), torch.no_grad():
        for k, batch in enumerate(batches):
            for norm in batch_norms(network):
                norm.momentum = 1 / (k + 1)
            network(batch)


@cache
def trained_a_little(space: SearchSpace) -> Supernet:
    """Return a supernet whose weights and statistics differ from their initial values."""
    torch.manual_seed(0)
    supernet = space.supernet().train()
    optimiser = torch.optim.SGD(supernet.parameters(), lr=0.01)
    for step in range(2):
        architecture = sampled(space, step)
        supernet.activate(architecture)
        optimiser.zero_grad()
        supernet(images(space, architecture, seed=step)).square().mean().backward()
        optimiser.step()
    return supernet


@pytest.mark.slow
@runnable_space
@settings(max_examples=6)
@given(seed=seeds)
def test_extracted_network_equals_the_active_one(space: SearchSpace, seed: int) -> None:
    """Compare the two after training steps, and after a recalibration of each."""
    supernet = trained_a_little(space).eval()
    architecture = sampled(space, seed ^ 1)
    batch = images(space, architecture, seed=seed)
    supernet.activate(architecture)
    extracted = supernet.extract(architecture)
    with torch.no_grad():
        torch.testing.assert_close(supernet(batch), extracted(batch), rtol=1e-5, atol=1e-5)

    batches = [images(space, architecture, seed=k) for k in range(2)]
    recalibrate(supernet, batches)
    recalibrate(extracted, batches)
    with torch.no_grad():
        torch.testing.assert_close(supernet(batch), extracted(batch), rtol=1e-5, atol=1e-5)
        again = supernet.extract(architecture)
        torch.testing.assert_close(supernet(batch), again(batch), rtol=1e-5, atol=1e-5)


@runnable_space
@settings(max_examples=6)
@given(seed=seeds)
def test_active_network_equals_the_built_one_with_its_weights(
    space: SearchSpace, seed: int
) -> None:
    """Compare the active network with that of `build`, after other networks were active."""
    supernet, architecture = trained_a_little(space).eval(), sampled(space, seed)
    for each in (space.smallest(), sampled(space, seed ^ 1), space.largest(), architecture):
        supernet.activate(each)
    built, batch = space.build(architecture).eval(), images(space, architecture)
    with torch.no_grad():
        outputs = supernet(batch)
        state = supernet.active.state_dict()
        assert list(state) == list(built.state_dict())
        built.load_state_dict(state)
        torch.testing.assert_close(outputs, built(batch), rtol=1e-5, atol=1e-5)


@block_space
def test_activate_makes_each_block_once_and_builds_no_network(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is made once, so activating a network of known blocks takes microseconds."""
    supernet, rng, made = trained_a_little(space), random.Random(0), list[str]()

    def counted(place: BlockSpec, key: object, module: object = BlockSpec.module) -> nn.Module:
        made.append(f"{place.name} {key}")
        return module(place, key)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(type(space), "build", None)
    monkeypatch.setattr(BlockSpec, "module", counted)
    for _ in range(40):
        supernet.activate(space.sample(rng))
    assert len(set(made)) == len(made)
    made.clear()
    rng.seed(0)
    for _ in range(40):
        supernet.activate(space.sample(rng))
    assert not made


def test_places_are_known_for_all_spaces_of_blocks() -> None:
    whole = {"gated", "quantised-gated", "elastic", "channels-resnet"}
    for name, space in (SPACES | LARGE).items():
        assert (not space.block_specs) == (name in whole)


@runnable_space
def test_gradients_reach_exactly_the_active_weights(space: SearchSpace) -> None:
    supernet = trained_a_little(space).train()
    architecture = sampled(space, 3)
    batch = images(space, architecture, batch=8)
    supernet.activate(architecture)
    extracted = supernet.extract(architecture)
    supernet.zero_grad()
    for network in (supernet, extracted):
        torch.manual_seed(0)  # a network with an exit draws the outputs that it trains
        network(batch).square().sum().backward()
    expected = {name: p.grad for name, p in extracted.named_parameters()}
    for name, shared in supernet.shared.named_parameters():
        if name not in expected:
            assert shared.grad is None
            continue
        assert shared.grad is not None
        assert expected[name] is not None
        places = torch.arange(shared.numel()).reshape(shared.shape)
        for dim, pieces in space.segments(architecture).get(name, ()):
            places = torch.cat([places.narrow(dim, start, n) for start, n in pieces], dim)
        own = centre_or_first(places, expected[name].shape).flatten()
        grad = shared.grad.flatten()
        torch.testing.assert_close(grad[own], expected[name].flatten(), rtol=1e-3, atol=1e-4)
        grad[own] = 0
        assert not grad.any()


def centre_or_first(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return the part of a given shape: the first channels, and the central kernel elements."""
    if tensor.dim() < 4:
        return tensor[tuple(slice(n) for n in shape)]
    height, width = ((t - s) // 2 for t, s in zip(tensor.shape[2:], shape[2:], strict=True))
    rows, columns = slice(height, height + shape[2]), slice(width, width + shape[3])
    return tensor[: shape[0], : shape[1], rows, columns]


@runnable_space
def test_extract_returns_a_plain_module_and_keeps_the_supernet(space: SearchSpace) -> None:
    supernet = trained_a_little(space).eval()
    before = {name: t.clone() for name, t in supernet.state_dict().items()}
    architecture = space.smallest()
    extracted = supernet.extract(architecture)
    assert type(extracted) is type(space.build(architecture))
    assert not extracted.training
    owned = {tensor.untyped_storage().data_ptr() for tensor in before.values()}
    for tensor in extracted.state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert tensor.untyped_storage().data_ptr() not in owned
        if tensor.is_floating_point():
            tensor.fill_(3.0)
    for name, tensor in supernet.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


@runnable_space
def test_trace_gives_equal_workloads_on_meta_and_on_a_real_device(space: SearchSpace) -> None:
    architecture = sampled(space, 5)
    with torch.device("meta"):
        blank = space.build(architecture)
    shape = space.input_shape(architecture)
    assert trace(blank, shape) == trace(space.build(architecture), shape)
