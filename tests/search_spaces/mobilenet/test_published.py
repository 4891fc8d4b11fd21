"""Published networks as members of the space: encodings, multiply-accumulates, parameters."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, MobileNetSpace, mobilenet
from hwnas.search_spaces.tabular import FBNetSpace, OFAMobileNetSpace, TabularSpace

OFA = mobilenet((224, 224, 3), 1000, "ofa-w1.0")
FBNET = mobilenet((32, 32, 3), 100, "fbnet")
SPACES = pytest.mark.parametrize(
    ("space", "table"), [(OFA, OFAMobileNetSpace()), (FBNET, FBNetSpace())], ids=["ofa", "fbnet"]
)


def table_file(name: str) -> dict[str, npt.NDArray[np.generic]]:
    path = Path(os.environ.get("HWNAS_DATA", "no-such-folder")) / name
    if not path.exists():
        pytest.skip(f"{name} is not in HWNAS_DATA")
    return dict(np.load(path))


def encoded(space: MobileNetSpace, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.array([space.encode(space.architecture_of(row)) for row in np.asarray(rows)])


def gates(space: MobileNetSpace, architecture: Architecture) -> int:
    """Return the multiplications of channel gates, which published counts leave out."""
    operators = space.workload(architecture).operators
    return sum(operator.macs for operator in operators if operator.kind == "elementwise")


def params(space: MobileNetSpace, architecture: Architecture) -> int:
    with torch.device("meta"):
        network = space.build(architecture)
    return sum(parameter.numel() for parameter in network.parameters())


@SPACES
def test_published_rows_and_architectures_map_one_to_one(
    space: MobileNetSpace, table: TabularSpace
) -> None:
    rng = np.random.default_rng(0)
    codes = space.canonical(
        rng.integers(0, [len(c.options) for c in space.choices], (300, len(space.choices)))
    )
    found = space.published(codes)
    assert found is not None
    assert found[0] == table
    assert encoded(space, found[1]).tolist() == codes.tolist()
    assert table.connected(found[1]).all()
    assert table.depth(found[1]).tolist() == (space.depth(codes) - (space is OFA)).tolist()


@pytest.mark.slow
@SPACES
def test_tabular_space_counts_the_macs_of_the_networks(
    space: MobileNetSpace, table: TabularSpace
) -> None:
    rng = random.Random(1)
    networks = [space.sample(rng) for _ in range(20)]
    codes = np.array([space.encode(network) for network in networks])
    found = space.published(codes)
    assert found is not None
    counted = space.counted(codes)["macs"].tolist()
    assert table.steps(found[1]).macs.tolist() == counted
    assert counted[:3] == [space.workload(network).macs for network in networks[:3]]


@pytest.mark.slow
def test_ofa_networks_have_params_and_macs_of_the_published_table() -> None:
    arrays = table_file("nasbench/ofa_mbv3_w10_imagenet.npz")
    rows = OFAMobileNetSpace().encode({name: arrays[name] for name in ("ks", "e", "d")})
    counted = OFA.counted(encoded(OFA, rows))
    assert counted["params"].tolist() == arrays["params"].tolist()
    for i in range(0, len(rows), 300):
        network = OFA.architecture_of(rows[i])
        assert params(OFA, network) == arrays["params"][i]
        assert OFA.workload(network).macs - gates(OFA, network) == arrays["macs"][i]


@pytest.mark.slow
def test_fbnet_networks_have_the_macs_of_the_published_table() -> None:
    arrays = table_file("latency/fbnet_latency_help.npz")
    rows = FBNetSpace().encode(arrays)
    macs = FBNET.counted(encoded(FBNET, rows))["macs"]
    assert macs == pytest.approx(1e6 * arrays["flops_m"], rel=1e-6)
    for i in range(0, len(rows), 1000):
        assert FBNET.workload(FBNET.architecture_of(rows[i])).macs == macs[i]


def test_fbnet_space_contains_fbnet_c_with_its_published_params() -> None:
    """FBNet-C of figure 4 in Wu et al. 2019: 375 M multiply-accumulates and 5.5 M parameters.

    The exact number of parameters is that of timm's ``fbnetc_100``.
    """
    space = mobilenet((224, 224, 3), 1000, "fbnet")
    names = [
        "k3_e1",
        *("k3_e6", "skip", "k3_e1", "k3_e1"),
        *("k5_e6", "k5_e3", "k5_e6", "k3_e6"),
        *("k5_e6", "k5_e3", "k5_e6", "k5_e6"),
        *("k5_e6", "k5_e6", "k5_e6", "k5_e3"),
        *("k5_e6",) * 4,
        "k3_e6",
    ]
    values = dict(zip((choice.name for choice in space.choices), names, strict=True))
    network = space.architecture(values)
    assert params(space, network) == 5_572_200
    assert space.workload(network).macs == 384_960_160  # 375 M in the paper
    assert space.size() == 9**22
    assert space.published(np.array([space.encode(network)])) is None  # the table is of 32 pixels


def test_proxyless_space_contains_proxyless_mobile_with_its_params() -> None:
    """ProxylessNAS-Mobile: 320 M multiply-accumulates in the paper, 4,080,512 parameters as built
    by its authors' ``proxyless_mobile``."""
    space = mobilenet((224, 224, 3), 1000, "proxyless")
    stages = [
        [(5, 3), (3, 3)],
        [(7, 3), (3, 3), (5, 3), (5, 3)],
        [(7, 6), (5, 3), (5, 3), (5, 3)],
        [(5, 6), (5, 3), (5, 3), (5, 3)],
        [(7, 6), (7, 6), (7, 3), (7, 3)],
        [(7, 6)],
    ]
    values: dict[str, int] = {}
    for s, blocks in enumerate(stages, start=1):
        if s < len(stages):
            values[f"stage{s}.depth"] = len(blocks)
        for b, (kernel_size, ratio) in enumerate(blocks):
            values[f"stage{s}.block{b}.kernel_size"] = kernel_size
            values[f"stage{s}.block{b}.expand_ratio"] = ratio
    network = space.architecture(values)
    assert params(space, network) == 4_080_512
    assert space.workload(network).macs == 320_427_584


def test_architecture_of_refuses_rows_without_a_network() -> None:
    row = np.array([1, 0, 1, 0, *[1, 1, 0, 0] * 4, 32])
    with pytest.raises(ConfigError, match=r"blocks \[1, 0, 1, 0\] of a stage are not in"):
        OFA.architecture_of(row)
    with pytest.raises(ConfigError, match=r"for images of 96 pixels; space\.resolution has"):
        OFA.architecture_of([*[1, 1, 0, 0] * 5, 0])
    with pytest.raises(ConfigError, match="expected 22 numbers of table fbnet"):
        FBNET.architecture_of([9] * 22)
    with pytest.raises(ConfigError, match="no published table has the networks of this"):
        mobilenet((8, 8, 1), 10).architecture_of([0])


@pytest.mark.parametrize("preset", ["tiny", "large", "proxyless"])
def test_published_is_none_for_presets_without_a_table(preset: str) -> None:
    space = mobilenet((224, 224, 3), 1000, preset)
    assert space.published(np.array([space.encode(space.largest())])) is None


def test_published_is_none_for_resolutions_outside_the_table() -> None:
    space = mobilenet((224, 224, 3), 1000, "ofa-w1.0", resolution=(223, 224))
    assert space.published(np.array([space.encode(space.largest())])) is None
