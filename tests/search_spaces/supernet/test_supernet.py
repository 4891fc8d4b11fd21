"""Supernets; test_space_conformance.py has the checks of weight sharing in every space."""

import copy
import gc
import pickle
import random
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, Choice, SearchSpace, Supernet, batch_norms, mobilenet
from hwnas.search_spaces.supernet.weight_views import corner

SPACE = mobilenet((8, 8, 1), 10)


class TwoNames(SearchSpace):
    """Invalid space: the small network has a layer name that the large one lacks."""

    name = "two-names"
    choices = (Choice("size", ("small", "large")),)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 1, 1, 4

    def build(self, architecture: Architecture) -> nn.Module:
        size = str(architecture.as_dict()["size"])
        return nn.Sequential(nn.Flatten()).append(nn.ModuleDict({size: nn.Linear(4, 4)}))


class Swelling(TwoNames):
    """Invalid space: the largest network is not the largest in every tensor."""

    name = "swelling"

    def build(self, architecture: Architecture) -> nn.Module:
        wide = 8 if architecture.as_dict()["size"] == "small" else 4
        return nn.Sequential(nn.Flatten(), nn.Linear(4, wide))


def test_corner_of_a_kernel_is_its_centre() -> None:
    kernel = torch.arange(2 * 1 * 5 * 5).view(2, 1, 5, 5)
    part = corner(kernel, torch.Size((1, 1, 3, 3)))
    assert part.tolist() == [[[[6, 7, 8], [11, 12, 13], [16, 17, 18]]]]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=4))
def test_corner_is_a_view_of_the_requested_shape(sizes: list[tuple[int, int]]) -> None:
    shape = torch.Size(small for small, _ in sizes)
    whole = torch.zeros([small + more for small, more in sizes])
    part = corner(whole, shape)
    assert part.shape == shape
    part.fill_(1)
    assert whole.sum() == shape.numel()


@pytest.mark.parametrize("shape", [(3, 5), (5, 4), (4,), (4, 4, 1)])
def test_corner_refuses_shapes_that_do_not_nest(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="do not fit into the shared"):
        corner(torch.zeros(4, 4), torch.Size(shape))


def test_supernet_refuses_networks_whose_parameter_names_do_not_nest() -> None:
    supernet = TwoNames().supernet()
    with pytest.raises(ConfigError, match=r"two-names: the largest network has no '1\.small"):
        supernet.activate(TwoNames().smallest())


def test_supernet_refuses_networks_whose_parameter_shapes_do_not_nest() -> None:
    supernet = Swelling().supernet()
    supernet.activate(Swelling().smallest())
    with pytest.raises(
        ConfigError, match=r"\(8, 4\) do not fit into the shared weights of shape \(4, 4\)"
    ):
        supernet(torch.zeros(1, 1, 1, 4))


def agrees_with_itself(supernet: Supernet) -> None:
    architecture = SPACE.sample(random.Random(1))
    supernet.activate(architecture)
    parameter = next(supernet.parameters())
    x = torch.randn(2, *SPACE.input_shape(architecture), dtype=parameter.dtype)
    with torch.no_grad():
        outputs = supernet(x)
        extracted = supernet.extract(architecture).to(parameter.dtype)
        torch.testing.assert_close(outputs, extracted(x), rtol=1e-5, atol=1e-5)


def trained_statistics(supernet: Supernet) -> Supernet:
    supernet.train()
    supernet(3 + torch.randn(8, *SPACE.input_shape(SPACE.largest())))
    return supernet.eval()


def test_supernet_moves_running_statistics_to_another_dtype() -> None:
    supernet = trained_statistics(SPACE.supernet()).double()
    agrees_with_itself(supernet)
    supernet.train()
    supernet(torch.randn(8, *SPACE.input_shape(SPACE.sample(random.Random(1)))).double())
    agrees_with_itself(supernet.eval())


def test_supernet_copies_share_no_weights_with_the_original() -> None:
    supernet = trained_statistics(SPACE.supernet())
    for other in (copy.deepcopy(supernet), pickle.loads(pickle.dumps(supernet))):
        agrees_with_itself(other)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert other(torch.randn(1, *SPACE.input_shape(SPACE.sample(random.Random(1))))).eq(0).all()
    assert next(supernet.parameters()).any()


def test_supernet_has_the_same_outputs_with_loaded_weights() -> None:
    supernet, fresh = trained_statistics(SPACE.supernet()), SPACE.supernet().eval()
    fresh.load_state_dict(supernet.state_dict())
    x = torch.randn(2, *SPACE.input_shape(SPACE.largest()))
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), supernet(x), rtol=0, atol=0)


def test_supernet_begins_with_the_largest_network() -> None:
    supernet = SPACE.supernet().eval()
    x = torch.randn(2, *SPACE.input_shape(SPACE.largest()))
    with torch.no_grad():
        torch.testing.assert_close(supernet(x), supernet.shared(x), rtol=1e-6, atol=1e-6)


def test_supernet_saves_and_trains_only_the_shared_network() -> None:
    supernet = SPACE.supernet()
    supernet.activate(SPACE.smallest())
    assert all(name.startswith("shared.") for name in supernet.state_dict())
    assert not any(parameter.is_meta for parameter in supernet.parameters())


def test_supernet_train_and_eval_apply_to_later_active_networks() -> None:
    supernet = SPACE.supernet().eval()
    supernet.activate(SPACE.smallest())
    assert not any(norm.training for norm in batch_norms(supernet))
    supernet.train()
    assert all(norm.training for norm in batch_norms(supernet))
    supernet.activate(SPACE.largest())
    assert all(norm.training for norm in batch_norms(supernet))


def test_batch_norms_are_those_of_the_active_network() -> None:
    supernet = SPACE.supernet()
    supernet.activate(SPACE.smallest())
    extracted = batch_norms(supernet.extract(SPACE.smallest()))
    assert [n.num_features for n in batch_norms(supernet)] == [n.num_features for n in extracted]
    assert len(batch_norms(supernet)) < len(batch_norms(supernet.shared))


class Wide(TwoNames):
    """Space of networks that are built as a whole, and of more networks than the cache holds."""

    name = "wide"
    choices = (Choice("width", tuple(range(1, 101))),)

    def build(self, architecture: Architecture) -> nn.Module:
        width = int(architecture.as_dict()["width"])
        return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, 3))


def test_supernet_rebuilds_networks_beyond_its_cache() -> None:
    space = Wide()
    supernet, images = space.supernet().eval(), torch.randn(2, 1, 1, 4)
    networks = [space.architecture({"width": width}) for width in range(1, 101)]
    first = weakref.ref(activated(supernet, networks[0]))
    for network in (*networks, *networks[:3]):
        activated(supernet, network)
        with torch.no_grad():
            torch.testing.assert_close(supernet(images), supernet.extract(network)(images))
    assert first() is None


def activated(supernet: Supernet, architecture: Architecture) -> nn.Module:
    supernet.activate(architecture)
    return supernet.active


@pytest.mark.slow
def test_supernet_rebuilds_blocks_beyond_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place keeps a limited number of blocks; others are dropped and made again."""
    monkeypatch.setattr("hwnas.search_spaces.supernet.shared_modules._KEPT_BLOCKS", 2)
    supernet, rng = SPACE.supernet().eval(), random.Random(0)
    seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    for _ in range(40):
        supernet.activate(SPACE.sample(rng))
        seen.update(supernet.active.get_submodule(place.name) for place in SPACE.block_specs[:2])
    gc.collect()
    assert len(seen) <= 2 * 2
    agrees_with_itself(supernet)
