"""Elastic numbers of attention heads."""

import copy
from collections.abc import Callable

import pytest
import torch
from own_models import ByHead, Joint, OfTorch, Separate, VisionTransformer, WidthBound, seeded
from torch import Tensor, nn

from hwnas.search_spaces import elastic

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))

READERS: dict[Callable[[int, int], nn.Module], str] = {
    Joint: "blocks.1.attention.proj",
    ByHead: "blocks.1.attention.proj",
    Separate: "blocks.1.attention.out",
    OfTorch: "blocks.1.attention.attention.out_proj",
}


@pytest.mark.parametrize("attention", READERS)
def test_network_with_fewer_heads_equals_one_that_ignores_the_others(
    attention: Callable[[int, int], nn.Module],
) -> None:
    """Compare two of six heads with all six where the outputs of the other four get no weight."""
    space = elastic(seeded(lambda: VisionTransformer(attention)), IMAGES, widths=(0.3, 1.0))
    (name,) = (c.name for c in space.choices if c.name.endswith(".heads") and "blocks.1" in c.name)
    assert {c.name: c.options for c in space.choices}[name] == (2, 6)
    supernet = space.supernet().eval()
    values = {**space.largest().as_dict(), name: 2}
    narrow = supernet.extract(space.architecture(values))
    whole = copy.deepcopy(supernet.shared)
    with torch.no_grad():
        whole.get_submodule(READERS[attention]).weight[:, 16:] = 0
        torch.testing.assert_close(narrow(IMAGES), whole(IMAGES), rtol=1e-5, atol=1e-5)
    assert not any("heads" in fixed.reason for fixed in space.fixed)


def test_heads_that_depend_on_the_width_shrink_with_it() -> None:
    space = elastic(seeded(lambda: VisionTransformer(WidthBound)), IMAGES)
    assert not any(choice.name.endswith(".heads") for choice in space.choices)
    network = space.build(space.architecture({**space.largest().as_dict(), "patch.width": 24}))
    attention = network.get_submodule("blocks.0.attention")
    assert (attention.n_head, attention.n_embd) == (3, 24)
    assert attention.attend.weight.shape == (72, 24)


class Biased(Joint):
    """Attention with a parameter for each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.strength = nn.Parameter(torch.linspace(0.5, 1.5, heads))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * self.strength[:, None, None]).softmax(-1)
        outputs: Tensor = self.proj((weights @ v).transpose(1, 2).flatten(2))
        return outputs


def test_heads_with_parameters_of_their_own_are_fixed_with_a_reason() -> None:
    space = elastic(seeded(lambda: VisionTransformer(Biased)), IMAGES)
    assert not any(choice.name.endswith(".heads") for choice in space.choices)
    found = {fixed.name: fixed.reason for fixed in space.fixed}
    assert "its heads cannot be left out" in found["blocks.0.attention"]
    assert {c.name for c in space.choices} >= {"patch.width", "blocks.0.mlp.0.width"}
