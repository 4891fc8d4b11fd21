"""Candidate operators: modules at one place of a network, each with weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

__all__ = ["CandidateOperators", "Gate", "only_operator"]

Gate = Callable[[Tensor, Mapping[str, nn.Module]], Tensor]
"""Function of the input of a place and its operators by name, which returns the output."""


class CandidateOperators(nn.Module):
    """Operators among which a choice selects: (N, ...) -> (N, ...).

    A plain network has the selected operator only, under its name; its weights are therefore named
    differently from those of every other operator. The shared weights of a supernet have all of
    them.

    Attributes:
        gate: Rule that combines several operators, for differentiable search; None if there is one
            operator, which is run as it is.

    Args:
        operators: Operators by name, which contains no dot.
    """

    gate: Gate | None = None

    def __init__(self, operators: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, operator in operators.items():
            self.add_module(name, operator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the only operator, or of the gate."""
        if self.gate is not None:
            return self.gate(x, dict(self.named_children()))
        (operator,) = self.children()
        y: Tensor = operator(x)
        return y


def only_operator(module: nn.Module) -> nn.Module:
    """Return the operator that a module runs: the only candidate, or the module itself."""
    if not isinstance(module, CandidateOperators) or module.gate is not None:
        return module
    (operator,) = module.children()
    return operator
