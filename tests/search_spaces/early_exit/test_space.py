"""Spaces of networks with an early exit: places, training, thresholds and costs."""

from __future__ import annotations

import pickle
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import (
    Architecture,
    SearchSpace,
    edsr,
    mobilenet,
    nasbench201,
    resnet,
    trace,
    vit,
)
from hwnas.search_spaces.early_exit import (
    EarlyExitConfig,
    EarlyExitNetwork,
    EarlyExitSpace,
    EarlyExitWorkload,
    ExitHead,
)
from hwnas.search_spaces.early_exit.space import early_exit
from hwnas.search_spaces.quantised import QuantisedSpace

DIGITS = (8, 8, 1), 10
PLAIN = resnet(*DIGITS)
SPACE = EarlyExitSpace(PLAIN)


def with_exit(space: EarlyExitSpace, share: float, place: str | None = None) -> Architecture:
    """Return the largest network with an exit at a place; the first place if None."""
    values = space.networks.largest().as_dict()
    after = place or next(iter(space.places))
    return space.architecture({**values, "exit_share": share, "exit_after": after})


def images(space: SearchSpace, network: Architecture, count: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *space.input_shape(network), generator=generator)


def built(architecture: Architecture, space: EarlyExitSpace = SPACE) -> EarlyExitNetwork:
    torch.manual_seed(0)
    return space.build(architecture)


def block_of(space: EarlyExitSpace, network: Architecture) -> str:
    """Return the block after which the exit of a network stands."""
    head = built(network, space).head
    assert head is not None
    return head.block


def test_exits_stand_at_the_ends_of_stages() -> None:
    stages = len(PLAIN.config.stages)
    assert list(SPACE.places) == [f"stages.{stage}" for stage in range(stages - 1)]
    last = max(PLAIN.config.stages[0].depth) - 1
    assert block_of(SPACE, with_exit(SPACE, 0.5, "stages.0")) == f"stages.0.{last}"


def test_exits_of_networks_of_one_row_stand_after_a_share_of_their_blocks() -> None:
    plain = vit(*DIGITS, preset="tiny", depth=(3, 6))
    space = EarlyExitSpace(plain)
    assert list(space.places) == ["blocks:1/3", "blocks:2/3"]
    for depth, blocks in ((3, ("blocks.0", "blocks.1")), (6, ("blocks.1", "blocks.3"))):
        values = {**plain.largest().as_dict(), "depth": depth, "exit_share": 0.5}
        every = {c.name: c.options[0] for c in plain.choices}
        networks = [
            space.architecture({**every, **values, "exit_after": place}) for place in space.places
        ]
        assert tuple(block_of(space, network) for network in networks) == blocks
    assert list(EarlyExitSpace(plain, EarlyExitConfig(places=1)).places) == ["blocks:1/2"]


def test_choices_of_the_exit_follow_those_of_the_network() -> None:
    share, after = SPACE.choices[-2:]
    assert SPACE.choices[:-2] == PLAIN.choices
    assert share.options == (0.7, 0.5, 0.3, 0)  # from the cheapest network to the costliest
    assert after.when is not None
    assert after.when.values == (0.7, 0.5, 0.3)
    assert SPACE.largest().as_dict()["exit_share"] == 0
    always = EarlyExitSpace(PLAIN, EarlyExitConfig((0.5,)))
    assert always.choices[-1].when is None


def test_network_with_share_0_is_the_plain_network() -> None:
    largest = SPACE.largest()
    network, plain = built(largest).eval(), PLAIN.build(PLAIN.largest()).eval()
    plain.load_state_dict(network.network.state_dict())
    batch = images(SPACE, largest)
    with torch.no_grad():
        torch.testing.assert_close(network(batch), plain(batch))
    assert SPACE.workload(largest) == PLAIN.workload(PLAIN.largest())


def test_training_takes_outputs_of_the_exit_or_the_end_at_random_for_each_image() -> None:
    network = built(with_exit(SPACE, 0.5)).train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # else the outputs of an image depend on the batch
    batch = images(SPACE, with_exit(SPACE, 0.5), 200)
    with torch.no_grad():
        torch.manual_seed(1)
        outputs = network(batch)
        torch.manual_seed(1)
        torch.testing.assert_close(network(batch), outputs, rtol=0, atol=0)
        _, early, _ = network.paths(batch)
        end = network.network(batch)
    from_exit = (outputs == early).all(1)
    torch.testing.assert_close(outputs[~from_exit], end[~from_exit])
    assert 70 < int(from_exit.sum()) < 130  # 4 standard deviations around half of the images


def test_gradients_of_training_reach_the_head_of_the_exit_and_the_end() -> None:
    network = built(with_exit(SPACE, 0.3)).train()
    network(images(SPACE, with_exit(SPACE, 0.3))).square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.exit.parameters())
    assert network.network.classifier.outputs.weight.grad.any()  # type: ignore[union-attr]


def test_images_leave_where_the_exit_is_confident_enough() -> None:
    network = built(with_exit(SPACE, 0.5)).eval()
    batch = images(SPACE, with_exit(SPACE, 0.5))
    with torch.no_grad():
        end = network.network(batch)
        torch.testing.assert_close(network(batch), end)  # before the threshold is fitted
        _, early, confidence = network.paths(batch)
        assert network.head is not None
        network.head.fit(confidence)
        outputs = network(batch)
    leaves = confidence[:, 0] >= network.head.threshold
    assert int(leaves.sum()) == 32
    torch.testing.assert_close(outputs, torch.where(leaves[:, None], early, end))
    assert float(network.head.fitted_share) == 0.5


@settings(max_examples=60)
@given(
    share=st.floats(0.01, 0.99),
    confidences=st.lists(st.integers(1, 10_000), min_size=1, max_size=200, unique=True),
)
def test_fitted_share_differs_from_the_wanted_one_by_less_than_an_image(
    share: float, confidences: list[int]
) -> None:
    head = ExitHead("block", 4, 3, share)
    head.fit(torch.tensor(confidences) / 10_000)
    left = float((torch.tensor(confidences) / 10_000 >= head.threshold).float().mean())
    assert abs(left - share) < 1 / len(confidences)
    assert float(head.fitted_share) == pytest.approx(left)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_expected_macs_lie_between_those_of_both_paths(seed: int) -> None:
    architecture = SPACE.sample(random.Random(seed))
    plain = PLAIN.workload(SPACE.without_exit(architecture))
    found = SPACE.workload(architecture)
    if not architecture.as_dict()["exit_share"]:
        assert found.macs == plain.macs
        return
    assert isinstance(found, EarlyExitWorkload)
    whole = sum(operator.macs for operator in found.operators)
    assert found.until_exit.macs < found.macs < whole
    assert found.macs == pytest.approx(
        found.share * found.until_exit.macs + (1 - found.share) * whole, abs=1
    )
    assert plain.macs < whole < 1.1 * plain.macs  # the head of the exit is small
    assert found.peak_activation_bytes >= plain.peak_activation_bytes
    assert found.weight_bytes > plain.weight_bytes


def test_cost_up_to_the_exit_is_that_of_the_network_cut_there() -> None:
    space = EarlyExitSpace(vit(*DIGITS, preset="tiny", depth=(3,)))
    network = with_exit(space, 0.5, "blocks:2/3")
    found = space.workload(network)
    assert isinstance(found, EarlyExitWorkload)
    module = built(network, space)
    parts = module.network
    cut = nn.Sequential(parts.embedding, *list(parts.blocks)[:2], module.head)  # type: ignore[arg-type]
    assert found.until_exit.macs == trace(cut, space.input_shape(network)).macs


def test_later_and_rarer_exits_cost_more() -> None:
    places = list(SPACE.places)
    macs = [SPACE.workload(with_exit(SPACE, share)).macs for share in (0.7, 0.5, 0.3)]
    macs += [SPACE.workload(with_exit(SPACE, 0.3, place)).macs for place in places[1:]]
    assert macs == sorted(macs)


def test_supernet_has_a_head_for_each_place_with_weights_of_its_own() -> None:
    supernet = SPACE.supernet()
    assert list(supernet.shared.exit) == [place.replace(".", "_") for place in SPACE.places]  # type: ignore[arg-type]
    first = with_exit(SPACE, 0.5)
    supernet.activate(first)
    supernet(images(SPACE, first)).mean().backward()
    grads = {name: p.grad is not None for name, p in supernet.shared.exit.named_parameters()}  # type: ignore[union-attr]
    assert {name for name, seen in grads.items() if seen} == {
        name for name in grads if name.startswith("stages_0.")
    }


def test_active_network_equals_the_extracted_one_where_images_leave() -> None:
    torch.manual_seed(0)
    supernet, network = SPACE.supernet().eval(), with_exit(SPACE, 0.5)
    batch = images(SPACE, network)
    extracted = supernet.extract(network)
    assert isinstance(extracted, EarlyExitNetwork)
    with torch.no_grad():
        middle = extracted.paths(batch)[2].median()
        for head in supernet.shared.exit.children():  # type: ignore[union-attr]
            head.threshold.fill_(middle)  # type: ignore[operator, union-attr]
        supernet.activate(network)
        extracted = supernet.extract(network)
        torch.testing.assert_close(supernet(batch), extracted(batch))
        assert (extracted(batch) != extracted.network(batch)).any(1).float().mean() > 0.4


def test_space_reads_the_same_in_another_process() -> None:
    again = pickle.loads(pickle.dumps(SPACE))
    assert again.fingerprint == SPACE.fingerprint
    network = with_exit(SPACE, 0.3)
    assert again.workload(network) == SPACE.workload(network)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"exit_share": (0, 1)}, "expected shares from 0 up to, but not including, 1"),
        ({"exit_share": (0, True)}, "expected shares from 0"),
        ({"exit_share": ("half",)}, "expected shares from 0"),
        ({"exit_share": (0.5, 0.3)}, "in rising order"),
        ({"exit_share": (0,)}, "at least one of them above 0"),
        ({"exit_share": ()}, "at least one of them above 0"),
        ({"places": 0}, "space.places is 0; expected a whole number above 0"),
        ({"network": {"name": "mobilnet"}}, "did you mean 'mobilenet'"),
        ({"network": {"name": "quantised"}}, "exits are not exported"),
        ({"maps": True}, "tasks of one class per image"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        early_exit(*DIGITS, **options)  # type: ignore[arg-type]


def test_space_refuses_networks_without_a_place_for_an_exit() -> None:
    with pytest.raises(ConfigError, match="nasbench201 does not list its networks as rows"):
        EarlyExitSpace(nasbench201((8, 8, 3), 4, channels=4, cells=1))
    with pytest.raises(ConfigError, match="is a single block"):
        EarlyExitSpace(vit(*DIGITS, preset="tiny", depth=(1, 2)))
    with pytest.raises(ConfigError, match="one score for each class"):
        EarlyExitSpace(edsr(*DIGITS, preset="mixed"))
    with pytest.raises(ConfigError, match="quantised"):
        EarlyExitSpace(QuantisedSpace(mobilenet(*DIGITS)))
