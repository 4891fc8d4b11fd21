"""Groups of layers that share channels, in small models with known connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.narrowing import narrow_groups


class Model(nn.Module):
    """Model of named parts whose forward pass is a given function of the images and the parts."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, **dict(self.named_children()))


def conv(inputs: int, outputs: int, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def halves(group: ChannelGroup) -> tuple[int, ...]:
    half = group.channels // group.unit // 2 * group.unit
    return (half, group.channels) if half else (group.channels,)


def tried(model: nn.Module) -> tuple[dict[ChannelGroup, tuple[int, ...]], dict[str, str]]:
    model = model.eval()
    with torch.no_grad():
        output = model(EXAMPLE)
    return narrow_groups(model, EXAMPLE, output, halves, 1)


def found(model: nn.Module) -> dict[str, set[str]]:
    """Return the axes of each group that can be narrow, by the group's name."""
    return {
        group.name: {f"{member.axis.name}.{member.axis.side}" for member in group.members}
        for group in tried(model)[0]
    }


def reasons(model: nn.Module) -> dict[str, str]:
    return tried(model)[1]


def member(model: nn.Module, group: str, axis: str) -> list[list[int]]:
    """Return the positions of a group's channels along an axis."""
    (owner,) = (g for g in tried(model)[0] if g.name == group)
    (positions,) = (m.positions for m in owner.members if f"{m.axis.name}.{m.axis.side}" == axis)
    return positions.tolist()


def test_consecutive_layers_share_the_channels_between_them() -> None:
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6))
    assert found(model) == {"0": {"0.out", "1.out", "3.in"}}
    assert reasons(model) == {"3": "its channels are outputs of the network"}


def test_addition_puts_its_terms_into_one_group() -> None:
    model = Model(
        lambda x, a, b, c: (lambda y: c(y + b(y)).mean((2, 3)))(a(x)),
        a=conv(3, 8),
        b=conv(8, 8),
        c=conv(8, 5),
    )
    assert found(model) == {"a": {"a.out", "b.in", "b.out", "c.in"}}


def test_residual_around_the_input_fixes_its_channels() -> None:
    model = Model(lambda x, a, b: b(x + a(x)), a=conv(3, 3), b=conv(3, 5))
    assert found(model) == {}


def test_concatenation_keeps_groups_separate_at_their_positions() -> None:
    model = Model(
        lambda x, a, b, c: c(torch.cat([a(x), b(x)], 1)), a=conv(3, 8), b=conv(3, 4), c=conv(12, 5)
    )
    assert found(model) == {"a": {"a.out", "c.in"}, "b": {"b.out", "c.in"}}
    assert member(model, "a", "c.in") == [list(range(8))]
    assert member(model, "b", "c.in") == [list(range(8, 12))]


def test_sum_with_a_concatenation_splits_a_layer_into_groups() -> None:
    model = Model(
        lambda x, a, b, c, d: d(torch.cat([a(x), b(x)], 1) + c(x)),
        a=conv(3, 8), b=conv(3, 4), c=conv(3, 12), d=conv(12, 5),
    )  # fmt: skip
    assert found(model) == {"a": {"a.out", "c.out", "d.in"}, "b": {"b.out", "c.out", "d.in"}}
    assert member(model, "b", "c.out") == [list(range(8, 12))]


def test_depthwise_convolutions_and_gates_join_the_group_of_their_input() -> None:
    model = Model(
        lambda x, a, d, g, e, c: (
            lambda y: c(y * e(g(y.mean((2, 3), keepdim=True))).sigmoid())
        )(d(a(x))),
        a=conv(3, 8), d=conv(8, 8, groups=8), g=nn.Conv2d(8, 2, 1), e=nn.Conv2d(2, 8, 1),
        c=conv(8, 5),
    )  # fmt: skip
    assert found(model) == {
        "a": {"a.out", "d.out", "g.in", "e.out", "c.in"},
        "g": {"g.out", "e.in"},
    }


@pytest.mark.parametrize(
    "flat",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
    ],
)
def test_flattening_repeats_a_channel_for_each_of_its_pixels(
    flat: Callable[[Tensor], Tensor],
) -> None:
    model = Model(lambda x, a, f: f(flat(F.max_pool2d(a(x), 4))), a=conv(3, 8), f=nn.Linear(32, 5))
    assert found(model) == {"a": {"a.out", "f.in"}}
    assert member(model, "a", "f.in") == [list(range(pixel, 32, 4)) for pixel in range(4)]


def test_hard_coded_size_fixes_the_channels() -> None:
    model = Model(lambda x, a, f: f(a(x).view(-1, 512)), a=conv(3, 8), f=nn.Linear(512, 5))
    assert found(model) == {}
    assert "with 4 channels the network does not run" in reasons(model)["a"]


def test_permuted_channels_are_fixed_with_a_reason() -> None:
    shuffled = Model(lambda x, a, b: b(a(x).roll(1, 1)), a=conv(3, 8), b=conv(8, 5))
    assert "coupled in a way that the graph" in reasons(shuffled)["a"]


def test_grouped_layers_lose_only_whole_groups_of_channels() -> None:
    model = nn.Sequential(conv(3, 12), nn.GroupNorm(4, 12), conv(12, 5))
    (group,) = tried(model)[0]
    assert (group.channels, group.unit) == (12, 3)
    grouped = Model(
        lambda x, a, b, c: c(b(a(x))), a=conv(3, 8), b=conv(8, 8, groups=2), c=conv(8, 5)
    )
    assert found(grouped) == {"a": {"a.out", "b.out", "c.in"}}


def test_layer_that_runs_twice_is_fixed_with_a_reason() -> None:
    model = Model(lambda x, a, b, c: c(b(b(a(x)))), a=conv(3, 8), b=conv(8, 8), c=conv(8, 5))
    assert found(model) == {}
    assert "'b' runs 2 times in one pass" in reasons(model)["a"]


def test_u_net_has_separate_groups_for_skips_and_upsampling() -> None:
    model = Model(
        lambda x, a, b, u, c: (
            lambda y: c(torch.cat((y, u(b(F.max_pool2d(y, 2)))), dim=1))
        )(a(x)),
        a=conv(3, 8), b=conv(8, 16), u=nn.ConvTranspose2d(16, 4, 2, 2), c=conv(12, 1),
    )  # fmt: skip
    assert found(model) == {
        "a": {"a.out", "b.in", "c.in"},
        "b": {"b.out", "u.in"},
        "u": {"u.out", "c.in"},
    }


def test_narrow_groups_leaves_the_model_unchanged() -> None:
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), conv(8, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tried(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
