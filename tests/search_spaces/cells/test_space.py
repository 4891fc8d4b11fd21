"""Networks of NAS-Bench-201; test_space_conformance.py has the checks of every space."""

from __future__ import annotations

import csv
import gzip
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces import CellSpace, nasbench201
from hwnas.search_spaces.tabular import NasBench201Space

SPACE = CellSpace()
SMALL = CellSpace((8, 8, 3), outputs=4, channels=4, cells=1)
rows = st.lists(st.integers(0, 4), min_size=6, max_size=6)


def published(count: int) -> list[dict[str, str]]:
    path = Path(os.environ.get("HWNAS_DATA", "no-such-folder")) / "latency/nasbench201_archs.csv.gz"
    if not path.exists():
        pytest.skip("latency/nasbench201_archs.csv.gz is not in HWNAS_DATA")
    with gzip.open(path, "rt") as file:
        return random.Random(0).sample(list(csv.DictReader(file)), count)


def parameters(row: list[int]) -> int:
    with torch.device("meta"):
        network = SPACE.build(SPACE.architecture_of(row))
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.slow
def test_largest_cell_network_has_the_costs_of_the_paper() -> None:
    workload = SPACE.workload(SPACE.largest())
    assert workload.macs == pytest.approx(220.12e6, rel=1e-4)
    assert workload.params == 1_531_546


@pytest.mark.slow
def test_cell_networks_have_params_and_macs_of_the_published_table() -> None:
    for row in published(25):
        codes = [int(row[f"op{i}"]) for i in range(6)]
        assert parameters(codes) == pytest.approx(1e6 * float(row["params_m"]), abs=1)
        macs = sum(o.macs for o in SPACE.workload(SPACE.architecture_of(codes)).operators)
        assert macs == pytest.approx(1e6 * float(row["flops_m"]), rel=2e-3)


@settings(max_examples=25)
@given(row=rows)
def test_cell_outputs_depend_on_images_exactly_if_connected(row: list[int]) -> None:
    torch.manual_seed(0)
    network = SMALL.build(SMALL.architecture_of(row)).eval()
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        first, second = network(images)
    connected = bool(NasBench201Space().connected(np.array([row]))[0])
    assert bool((first != second).any()) == connected


@given(row=rows)
def test_architecture_of_maps_rows_one_to_one(row: list[int]) -> None:
    other = [(code + 1) % 5 for code in row]
    assert SPACE.architecture_of(row) == SPACE.architecture_of(np.array(row))
    assert SPACE.architecture_of(row) != SPACE.architecture_of(other)


def test_cell_edges_without_operation_have_no_cost() -> None:
    """Count the operators of a cell with one convolution on its only path: no additions."""
    one = SPACE.workload(SPACE.architecture_of([0, 0, 0, 3, 0, 0]))
    counts = one.counts()
    assert counts["elementwise"] == 2  # the residuals of the two blocks that halve
    assert counts["conv"] == 1 + 15 + 4


@pytest.mark.parametrize("row", [[0] * 5, [5, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0], 3])
def test_architecture_of_refuses_a_row_of_another_space(row: object) -> None:
    with pytest.raises(ConfigError, match="a number from 0 to 4 for each of the 6 edges"):
        SPACE.architecture_of(row)  # type: ignore[arg-type]


def test_nasbench201_refuses_sizes_out_of_range() -> None:
    with pytest.raises(ConfigError, match="cells is 0"):
        nasbench201((32, 32, 3), 10, cells=0)
    with pytest.raises(ConfigError, match="expected at least 4x4"):
        nasbench201((3, 32, 3), 10)


def test_cell_space_fingerprint_depends_on_the_skeleton() -> None:
    found = {
        space.fingerprint
        for space in (
            SPACE,
            CellSpace(cells=4),
            CellSpace(channels=8),
            CellSpace((28, 28, 1)),
            CellSpace(outputs=100),
        )
    }
    assert len(found) == 5
