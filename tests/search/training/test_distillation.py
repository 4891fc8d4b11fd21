from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.deploy.io import OutputMeaning
from hwnas.errors import ConfigError
from hwnas.search.tasks.classification import Classification
from hwnas.search.tasks.segmentation import Segmentation
from hwnas.search.training.distillation import alpha_divergence, distillation_loss

ROWS = st.lists(st.lists(st.floats(-6, 6), min_size=4, max_size=4), min_size=1, max_size=5).map(
    lambda rows: torch.tensor(rows, dtype=torch.float64)
)


def by_definition(q_logits: Tensor, p_logits: Tensor, alpha: float) -> Tensor:
    q, p = q_logits.softmax(1), p_logits.softmax(1)
    if alpha == 1:
        return (p * (p / q).log()).sum(1)
    return (q * ((p / q) ** alpha - 1)).sum(1) / (alpha * (alpha - 1))


@given(ROWS, st.sampled_from([(-1.0, 1.0), (-0.5, 2.0)]))
def test_unclipped_alpha_divergence_equals_the_larger_divergence(
    teacher: Tensor, alphas: tuple[float, float]
) -> None:
    student = (0.3 * teacher.flip(1) + torch.linspace(-1, 1, 4)).float().requires_grad_()
    teacher = teacher.float()
    loss = alpha_divergence(student, teacher, alphas, clip=math.inf)
    both = torch.stack([by_definition(student, teacher, alpha) for alpha in alphas])
    expected = both.max(0).values.mean()
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-4)
    if ((both[0] - both[1]).abs() > 1e-3 * both.abs().sum(0)).all():  # the larger one is clear
        gradients = [torch.autograd.grad(each, student)[0] for each in (loss, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3)


@given(ROWS)
def test_alpha_divergence_has_a_bounded_gradient(teacher: Tensor) -> None:
    student = (-20 * teacher.float()).requires_grad_()
    alpha_divergence(student, 20 * teacher.float()).backward()
    assert student.grad is not None
    # Weights of at most 5, for probabilities that sum to one, from both terms of the softmax.
    assert student.grad.abs().sum(1).max() <= 2 * 5 / len(teacher) + 1e-4
    assert student.grad.isfinite().all()


@given(ROWS)
def test_alpha_divergence_has_no_gradient_if_student_equals_teacher(teacher: Tensor) -> None:
    student = teacher.float().requires_grad_()
    loss = alpha_divergence(student, teacher.float())
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert student.grad is not None
    assert student.grad.abs().max() < 1e-5


def test_alpha_divergence_gives_the_teacher_no_gradient() -> None:
    teacher = torch.randn(3, 4, requires_grad=True)
    student = torch.randn(3, 4, requires_grad=True)
    alpha_divergence(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_kl_distillation_loss_equals_that_of_the_task(digits_task: Classification) -> None:
    a, b = torch.randn(5, 10), torch.randn(5, 10)
    assert distillation_loss(digits_task, "kl")(a, b) == digits_task.distillation_loss(a, b)


def test_alpha_distillation_loss_refuses_value_outputs(digits_task: Classification) -> None:
    class Values(Classification):
        @property
        def meaning(self) -> OutputMeaning:
            return OutputMeaning("values")

    task = Values(**{f.name: getattr(digits_task, f.name) for f in dataclasses.fields(digits_task)})
    with pytest.raises(ConfigError, match=r"train\.distillation_loss is 'alpha', .* use 'kl'"):
        distillation_loss(task, "alpha")


@pytest.mark.parametrize("name", ["kl", "alpha"])
def test_distillation_loss_accepts_a_teacher_of_another_resolution(name: str) -> None:
    task = Segmentation(("a", "b", "c"), preprocessing=None)  # type: ignore[arg-type]
    distance = distillation_loss(task, name)
    teacher = torch.randn(2, 3, 8, 8)
    student = torch.zeros(2, 3, 4, 4, requires_grad=True)
    before = distance(student, teacher)
    before.backward()
    assert student.grad is not None
    assert distance(student.detach() - 5 * student.grad, teacher) < before
    assert distance(teacher, teacher).item() == pytest.approx(0, abs=1e-6)
