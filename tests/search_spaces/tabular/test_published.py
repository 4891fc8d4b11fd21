"""Tabular spaces, compared with published multiply-accumulates and cells."""

from __future__ import annotations

import csv
import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from hwnas.search_spaces.tabular import FBNetSpace, NasBench201Space, OFAMobileNetSpace

DATA = Path(os.environ.get("HWNAS_DATA", "no-such-folder"))


def table(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in HWNAS_DATA")
    return path


def test_nasbench201_macs_of_two_known_cells_equal_published_ones() -> None:
    space = NasBench201Space()
    # All 3x3 convolutions; the first row of the benchmark (pool, 1x1, skip, 1x1, skip, skip).
    codes = np.array([[3] * 6, [4, 2, 1, 2, 1, 1]])
    assert space.steps(codes).macs == pytest.approx([220.12e6, 15.647e6], rel=1e-4)


def test_nasbench201_finds_disconnected_cells_and_dead_operators() -> None:
    space = NasBench201Space()
    through, dead_end, nothing = [0, 0, 0, 2, 0, 0], [3, 3, 3, 0, 0, 0], [0] * 6
    assert space.connected(np.array([through, dead_end, nothing])).tolist() == [True, False, False]
    table = space.steps(np.array([through, dead_end]))
    live = np.array([float(s.kind == "conv" and not s.dead) for s in table.steps])
    dead = np.array([float(s.kind == "conv" and s.dead) for s in table.steps])
    assert table.total(live).tolist() == [5, 5]  # those of the skeleton
    assert table.total(dead).tolist() == [0, 3 * 15]


@pytest.mark.slow
def test_nasbench201_has_the_number_of_unique_cells_of_the_paper() -> None:
    """15,625 cells, of which 6,466 are unique (Dong and Yang, ICLR 2020, table 1)."""
    space = NasBench201Space()
    codes = np.array(list(itertools.product(*map(range, space.options))))
    assert (len(codes), space.isomorphic(codes).max() + 1) == (15_625, 6_466)
    mirrored = np.array([[1, 2, 3, 0, 0, 1], [1, 3, 2, 0, 0, 1], [1, 3, 3, 0, 0, 1]])
    first, second, third = space.isomorphic(mirrored)
    assert first == second != third


def test_nasbench201_finds_the_isomorphic_cells_of_the_table() -> None:
    arrays = dict(np.load(table("nasbench/nasbench201.npz")))
    space = NasBench201Space()
    found = space.isomorphic(space.encode({"ops": arrays["ops"], "op_names": arrays["op_names"]}))
    _, published = np.unique(arrays["unique_str"], return_inverse=True)
    assert len(set(zip(found.tolist(), published.tolist(), strict=True))) == 6_466


def test_nasbench201_encodes_operations_by_name_in_any_order() -> None:
    space = NasBench201Space()
    names = np.array(["avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3", "none", "skip_connect"])
    codes = space.encode({"ops": np.array([[0, 1, 2, 3, 4, 0]]), "op_names": names})
    assert codes.tolist() == [[4, 2, 3, 0, 1, 4]]


def test_nasbench201_macs_and_connections_equal_the_whole_table() -> None:
    with gzip.open(table("latency/nasbench201_archs.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    codes = np.array([[int(row[f"op{i}"]) for i in range(6)] for row in rows])
    space = NasBench201Space()
    macs = space.steps(codes).macs
    assert macs == pytest.approx([1e6 * float(row["flops_m"]) for row in rows], rel=1e-3)
    assert (~space.connected(codes)).sum() == 341


def test_fbnet_macs_equal_the_whole_table() -> None:
    arrays = dict(np.load(table("latency/fbnet_latency_help.npz")))
    space = FBNetSpace()
    macs = space.steps(space.encode(arrays)).macs
    assert macs == pytest.approx(1e6 * arrays["flops_m"], rel=1e-6)


def test_ofa_mobilenet_macs_equal_the_whole_table() -> None:
    arrays = dict(np.load(table("nasbench/ofa_mbv3_w10_imagenet.npz")))
    space = OFAMobileNetSpace()
    table_ = {name: arrays[name] for name in ("ks", "e", "d")}
    macs = space.steps(space.encode(table_)).macs
    # The published count leaves out the multiplications of the channel gates.
    assert macs == pytest.approx(arrays["macs"], rel=0.005)
