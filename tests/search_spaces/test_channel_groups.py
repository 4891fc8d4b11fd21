"""Which layers have to have the same channels, against models that were wired by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.errors import ConfigError
from hwnas.search_spaces import channel_groups


class Model(nn.Module):
    """Parts, and a forward pass that is a function of them and the images."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, **dict(self.named_children()))


def conv(inputs: int, outputs: int, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def found(model: nn.Module, shape: tuple[int, ...] = (2, 3, 8, 8)) -> dict[str, set[str]]:
    """Where each group is that can change, by the group's name."""
    wiring = channel_groups(model, torch.empty(shape))
    places: dict[str, set[str]] = {group.name: set() for group in wiring.groups if not group.fixed}
    for axis in wiring.axes:
        for segment in axis.segments:
            if not wiring.groups[segment.group].fixed:
                places[wiring.groups[segment.group].name].add(f"{axis.module}.{axis.side}")
    return places


def reasons(model: nn.Module, shape: tuple[int, ...] = (2, 3, 8, 8)) -> dict[str, str]:
    return {g.name: g.fixed for g in channel_groups(model, torch.empty(shape)).groups if g.fixed}


def test_layers_in_a_row_share_the_channels_between_them() -> None:
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6))
    assert found(model) == {"0": {"0.out", "1.both", "3.in"}}
    assert set(reasons(model)) == {"input", "3"}


def test_an_addition_ties_its_terms() -> None:
    model = Model(
        lambda x, a, b, c: c(a(x) + b(a(x))).mean((2, 3)), a=conv(3, 8), b=conv(8, 8), c=conv(8, 5)
    )
    assert found(model) == {"a": {"a.out", "b.in", "b.out", "c.in"}}


def test_a_residual_around_the_input_cannot_change() -> None:
    model = Model(lambda x, a, b: b(x + a(x)), a=conv(3, 3), b=conv(3, 5))
    assert found(model) == {}


def test_a_concatenation_strings_groups_together() -> None:
    model = Model(
        lambda x, a, b, c: c(torch.cat([a(x), b(x)], 1)), a=conv(3, 8), b=conv(3, 4), c=conv(12, 5)
    )
    assert found(model) == {"a": {"a.out", "c.in"}, "b": {"b.out", "c.in"}}
    wiring = channel_groups(model, torch.empty(2, 3, 8, 8))
    (taken,) = (axis for axis in wiring.axes if (axis.module, axis.side) == ("c", "in"))
    assert [wiring.groups[s.group].name for s in taken.segments] == ["a", "b"]


def test_a_sum_of_different_concatenations_cannot_change() -> None:
    model = Model(
        lambda x, a, b, c: torch.cat([a(x), b(x)], 1) + c(x),
        a=conv(3, 8), b=conv(3, 4), c=conv(3, 12),
    )  # fmt: skip
    assert "concatenated differently" in reasons(model)["a"]


def test_depthwise_convolutions_and_gates_follow() -> None:
    model = Model(
        lambda x, a, d, g, e, c: c(d(a(x)) * e(g(d(a(x)).mean((2, 3), keepdim=True))).sigmoid()),
        a=conv(3, 8), d=conv(8, 8, groups=8), g=nn.Conv2d(8, 2, 1), e=nn.Conv2d(2, 8, 1),
        c=conv(8, 5),
    )  # fmt: skip
    assert found(model) == {
        "a": {"a.out", "d.both", "g.in", "e.out", "c.in"},
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
def test_flattening_repeats_a_channel_for_its_pixels(flat: Callable[[Tensor], Tensor]) -> None:
    model = Model(lambda x, a, f: f(flat(F.max_pool2d(a(x), 4))), a=conv(3, 8), f=nn.Linear(32, 5))
    assert found(model) == {"a": {"a.out", "f.in"}}
    wiring = channel_groups(model, torch.empty(2, 3, 8, 8))
    assert max(segment.repeat for axis in wiring.axes for segment in axis.segments) == 4


def test_a_size_that_is_written_down_keeps_the_channels() -> None:
    model = Model(lambda x, a, f: f(a(x).view(-1, 512)), a=conv(3, 8), f=nn.Linear(512, 5))
    assert "view" in reasons(model)["a"]


def test_what_is_not_known_keeps_the_channels_and_says_why() -> None:
    shuffled = Model(lambda x, a, b: b(a(x).roll(1, 1)), a=conv(3, 8), b=conv(8, 5))
    assert "roll" in reasons(shuffled)["a"]
    grouped = Model(lambda x, a, b: b(a(x)), a=conv(3, 8), b=conv(8, 8, groups=2))
    assert reasons(grouped)["a"] == "call module b"


def test_group_normalisation_asks_for_multiples() -> None:
    model = nn.Sequential(conv(3, 12), nn.GroupNorm(4, 12), conv(12, 5))
    (group,) = (g for g in channel_groups(model, torch.empty(2, 3, 8, 8)).groups if not g.fixed)
    assert (group.channels, group.multiple) == (12, 4)


def test_a_layer_that_is_called_twice_has_one_set_of_channels() -> None:
    model = Model(lambda x, a, b, c: c(b(b(a(x)))), a=conv(3, 8), b=conv(8, 8), c=conv(8, 5))
    assert found(model) == {"a": {"a.out", "b.in", "b.out", "c.in"}}


def test_transposed_convolutions_and_skips_of_a_u_net() -> None:
    model = Model(
        lambda x, a, b, u, c: c(torch.cat((a(x), u(b(F.max_pool2d(a(x), 2)))), dim=1)),
        a=conv(3, 8), b=conv(8, 16), u=nn.ConvTranspose2d(16, 4, 2, 2), c=conv(12, 1),
    )  # fmt: skip
    assert found(model) == {
        "a": {"a.out", "b.in", "c.in"},
        "b": {"b.out", "u.in"},
        "u": {"u.out", "c.in"},
    }


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_cannot_be_traced_names_module_and_line() -> None:
    model = nn.Sequential(conv(3, 8), nn.Sequential(nn.ReLU(), Branching()))
    with pytest.raises(
        ConfigError,
        match=r"Sequential cannot be traced: module '1\.1' at line \d+ of .*test_channel_groups\.py"
        r" fails .* Write its forward without branches",
    ):
        channel_groups(model, torch.empty(2, 3, 8, 8))


def test_images_that_are_too_small_name_the_layer() -> None:
    model = nn.Sequential(conv(3, 8), nn.MaxPool2d(4), nn.Conv2d(8, 5, 3))
    with pytest.raises(ConfigError, match=r"does not take these images: call module 2 fails"):
        channel_groups(model, torch.empty(2, 3, 8, 8))


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    channel_groups(model, torch.empty(2, 3, 8, 8))
    assert model.training
    for name, tensor in model.state_dict().items():
        assert not tensor.is_meta
        assert torch.equal(tensor, before[name])
