"""Fine-tuning by a program, and the contributions that it measures."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tests.deploy.finetuning.networks import batch_of, graph_of, made
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.contribution import measured_contributions
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme, full
from hwnas.deploy.finetuning.training import FineTuningSettings, fine_tune
from hwnas.errors import ConfigError


def loss_of(network: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(network(batch[0]), batch[1]))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fine_tuning_changes_only_what_the_scheme_trains(
    optimizer: str,
) -> None:
    graph, plain, before = graph_of("plain"), made("plain"), made("plain")
    scheme = UpdateScheme({"two": LayerUpdate(0.5), "three": LayerUpdate(0.0)})
    program = compile_scheme(graph, scheme)
    settings = FineTuningSettings(20, 0.01, optimizer)
    batch = batch_of(3)
    fine_tune(plain, program, itertools.repeat(batch), settings)
    assert loss_of(plain, batch) < loss_of(before, batch)
    new, old = dict(plain.named_parameters()), dict(before.named_parameters())
    changed = {name for name in old if not torch.equal(new[name], old[name])}
    assert changed == {"two.weight", "two.bias", "three.bias"}
    assert torch.equal(new["two.weight"][:, 4:], old["two.weight"][:, 4:])
    assert not torch.equal(new["two.weight"][:, :4], old["two.weight"][:, :4])


def test_fine_tuning_of_everything_equals_that_of_pytorch() -> None:
    plain = made("plain")
    other, batch = copy.deepcopy(plain), batch_of(3)
    graph = graph_of("plain")
    settings = FineTuningSettings(5, 0.01)
    fine_tune(plain, compile_scheme(graph, full(graph.layers)), itertools.repeat(batch), settings)
    optimizer = torch.optim.SGD(other.parameters(), 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(other(batch[0]), batch[1]).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    for new, expected in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-6)


def test_fine_tuning_says_if_the_loss_is_not_a_number() -> None:
    plain = made("plain")
    graph = graph_of("plain")
    images, targets = batch_of(3)
    batches = itertools.repeat((images * torch.inf, targets))
    program = compile_scheme(graph, full(graph.layers))
    with pytest.raises(ConfigError, match=r"not a number at step 0 .* learning rate below 0.01"):
        fine_tune(plain, program, batches, FineTuningSettings(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected more than 0"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
    ],
)
def test_settings_refuse_wrong_values(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FineTuningSettings(**wrong)  # type: ignore[arg-type]


def test_contributions_are_decreases_of_the_loss_by_one_layer_alone() -> None:
    plain = made("plain")
    graph, before = graph_of("plain"), copy.deepcopy(plain)
    batch, settings = batch_of(3), FineTuningSettings(5, 0.05)
    found = measured_contributions(plain, graph, lambda: itertools.repeat(batch), [batch], settings)
    for new, old in zip(plain.parameters(), before.parameters(), strict=True):
        assert torch.equal(new, old)
    assert found.loss == pytest.approx(loss_of(plain, batch), rel=1e-5)
    assert set(found.layers) == {"one", "two", "three", "four"}
    for name, each in found.layers.items():
        alone = copy.deepcopy(plain)
        program = compile_scheme(graph, UpdateScheme({name: LayerUpdate(1.0, bias=False)}))
        fine_tune(alone, program, itertools.repeat(batch), settings)
        assert each.weight[1.0] == pytest.approx(found.loss - loss_of(alone, batch), abs=1e-5)
        assert 0 < each.weight[0.25] <= each.weight[0.5] <= each.weight[1.0]
    scheme = UpdateScheme({"one": LayerUpdate(0.5), "two": LayerUpdate()})
    one, two = found.layers["one"], found.layers["two"]
    assert found.of(scheme) == pytest.approx(one.weight[0.5] + one.bias + two.bias)
