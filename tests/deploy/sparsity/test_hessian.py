"""Moments of the inputs of layers, against the outputs of the layers themselves."""

import pytest
import torch
from torch import nn

from hwnas.deploy.sparsity.hessian import input_hessian
from hwnas.deploy.sparsity.matrices import Layer, patches
from hwnas.search_spaces.layers.sparsity_structure import matrix_of, weight_of

LAYERS = {
    "linear": (nn.Linear(6, 5), (2, 7, 6)),
    "pointwise": (nn.Conv2d(3, 5, 1), (2, 3, 6, 7)),
    "padded": (nn.Conv2d(3, 5, (3, 2), stride=2, padding=(1, 0)), (2, 3, 8, 9)),
    "dilated": (nn.Conv2d(3, 5, 3, padding=2, dilation=2), (2, 3, 7, 8)),
    "same": (nn.Conv2d(3, 5, (5, 3), padding="same", dilation=(1, 2)), (2, 3, 7, 8)),
    "valid": (nn.Conv2d(3, 5, 3, padding="valid"), (2, 3, 7, 8)),
    "reflected": (nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"), (2, 3, 7, 8)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_matrix_times_patches_is_the_layer(kind: str) -> None:
    layer, shape = LAYERS[kind]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = layer(x)
        found = patches(layer, x) @ matrix_of(layer.weight).T + layer.bias
    if outputs.dim() == 4 and kind != "linear":
        outputs = outputs.movedim(1, -1)
    torch.testing.assert_close(found, outputs.reshape(-1, 5))
    assert torch.equal(weight_of(matrix_of(layer.weight), layer.weight.shape), layer.weight)


@pytest.mark.parametrize("kind", LAYERS)
def test_error_is_the_mean_squared_change_of_outputs(kind: str) -> None:
    layer, shape = LAYERS[kind]
    torch.manual_seed(0)
    batches = [torch.randn(shape), torch.randn(shape)]
    network = nn.Sequential(layer, nn.Flatten())
    hessian = input_hessian(network, layer, batches)
    assert hessian is not None
    change = 0.1 * torch.randn_like(matrix_of(layer.weight))
    positions = torch.cat([patches(layer, batch) for batch in batches])
    expected = (positions @ change.T).square().sum(1).mean()
    assert hessian.error(change) == pytest.approx(float(expected), rel=1e-4)
    assert hessian.positions == len(positions) / sum(map(len, batches))


def test_layer_that_is_never_called_has_no_moments() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    unused: Layer = nn.Linear(2, 2)
    network.unused = unused
    network.forward = lambda x: network[0](x)  # type: ignore[method-assign]
    assert input_hessian(network, unused, [torch.zeros(1, 2)]) is None
