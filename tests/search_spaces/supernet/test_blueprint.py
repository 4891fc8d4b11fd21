"""Networks without weights."""

import torch

from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.supernet.blueprint import blueprint


def test_blueprint_network_has_names_and_shapes_but_no_values() -> None:
    space = MobileNetSpace.from_preset("tiny", (8, 8, 1), 10)
    real = space.build(space.largest()).state_dict()
    with blueprint():
        drawn = space.build(space.largest()).state_dict()
    assert {k: v.shape for k, v in drawn.items()} == {k: v.shape for k, v in real.items()}
    assert all(tensor.is_meta for tensor in drawn.values())


def test_blueprint_does_not_affect_tensors_on_a_real_device() -> None:
    with blueprint():
        filled = torch.empty(3, device="cpu").fill_(2.0)
    assert filled.tolist() == [2.0, 2.0, 2.0]
