import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy import Preprocessing
from hwnas.deploy.export.comparison import (
    CheckBatch,
    agreement,
    check_batches,
    outputs_of,
    relative_error,
)

PREPROCESSING = Preprocessing(4, 4, 1, mean=(0.25,), std=(0.5,))


def test_check_batches_are_random_real_and_extreme_in_three_sizes() -> None:
    batches = check_batches((1, 4, 4), torch.full((2, 1, 4, 4), 0.3), PREPROCESSING)
    by_kind: dict[str, list[CheckBatch]] = {}
    for batch in batches:
        by_kind.setdefault(batch.kind, []).append(batch)
    sizes = {kind: [len(batch.images) for batch in same] for kind, same in by_kind.items()}
    for kind in ("random inputs", "real images"):
        assert sizes.pop(kind) == [1, 3, 8]
        assert not by_kind[kind][0].extreme
    assert len(sizes) == 4
    for kind, several in sizes.items():
        assert several == [3]
        assert by_kind[kind][0].extreme
    assert by_kind["zeros"][0].images.abs().max() == 0
    assert by_kind["random inputs times 1000"][0].images.abs().max() > 1000
    pixels = by_kind["the brightest and darkest image"][0].images
    assert pixels.flatten(1).tolist() == [[1.5] * 16, [-0.5] * 16, [1.5] * 16]


def compared(network: nn.Module, batch: CheckBatch, factor: float = 1.0) -> object:
    """Compare the network with a file that gives ``factor`` times its outputs."""

    def run(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return factor * outputs_of(network, torch.from_numpy(images))

    return agreement(run, network, [batch], [outputs_of(network, batch.images)])


@pytest.mark.parametrize("extreme", [False, True])
def test_agreement_is_relative_to_the_largest_output(extreme: bool) -> None:
    batch = CheckBatch("large", 1e6 * torch.randn(3, 1, 4, 4), extreme)
    assert compared(nn.Flatten(), batch, 1 + 1e-6).worst is None
    wrong = compared(nn.Flatten(), batch, 1 + 2e-3)
    assert wrong.worst is batch
    assert wrong.relative == pytest.approx(2e-3, rel=0.01)
    assert str(wrong.worst) == "large, 3 at once"


class Overflowing(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).exp()


class Chaotic(nn.Module):
    """Network that loses its inputs to rounding: it adds and subtracts a large number."""

    def forward(self, images: Tensor) -> Tensor:
        return ((images + 1e6) - 1e6).flatten(1)


@pytest.mark.parametrize(("network", "pixel"), [(Chaotic(), 0.3), (Overflowing(), 1000.0)])
def test_agreement_is_inconclusive_where_pytorch_itself_is_inexact(
    network: nn.Module, pixel: float
) -> None:
    images = torch.full((1, 1, 2, 2), pixel)
    found = compared(network, CheckBatch("odd", images, True), 1.01)
    assert found.worst is None
    assert found.inconclusive == ("odd, 1 at once",)
    assert found.batches == 0
    assert compared(network, CheckBatch("real", images, False), 1.01).worst is not None


def test_relative_error_is_infinite_for_other_shapes() -> None:
    expected = np.array([[1.0, -4.0]])
    assert relative_error(expected * 1.1, expected) == pytest.approx(0.1)
    assert relative_error(expected[:, :1], expected) == float("inf")
