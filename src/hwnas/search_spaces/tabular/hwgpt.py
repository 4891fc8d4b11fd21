"""Spaces of HW-GPT-Bench (Sukthanker et al., NeurIPS 2024): decoders elastic in all dimensions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.cost_model.operator_counts import (
    Assembly,
    OperatorCountTable,
    OperatorSignature,
)
from hwnas.search_spaces.tabular.table import Arrays, Codes

__all__ = ["HwGptSpace"]

_FIELDS = ("embed_dim", "n_layer", "bias", "mlp_ratio", "n_head")
_RATIOS, _BIAS = (2, 3, 4), (0, 1)
_WHOLE = 3  # positions of the whole network: width, number of layers, bias
_TOKENS, _BYTES = 1024, 4
_ABSENT = 0


@dataclass(frozen=True)
class HwGptSpace:
    """Space of decoders at one of the benchmark's three scales.

    The first positions are the indices of the width, of the number of layers and of whether there
    are biases; then follow those of the MLP ratio of each layer, and of its number of heads. They
    are 0 where there is no layer. Operators are those of the layers, for 1,024 tokens; embedding
    and head are left out, since the tables do not state the number of tokens.

    Attributes:
        name: Name for ``--space``.
        widths: Options for the channels of a token.
        layers: Options for the number of layers.
        heads: Options for the number of heads of a layer.
    """

    name: str
    widths: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def options(self) -> tuple[int, ...]:
        """Number of options at each position."""
        most = max(self.layers)
        whole = len(self.widths), len(self.layers), len(_BIAS)
        return *whole, *[len(_RATIOS)] * most, *[len(self.heads)] * most

    @property
    def groups(self) -> tuple[int, ...]:
        """Group of each position: one for each of the whole network, for ratios and for heads."""
        most = max(self.layers)
        return *range(_WHOLE), *[_WHOLE] * most, *[_WHOLE + 1] * most

    def encode(self, arrays: Arrays) -> Codes:
        """Read the arrays ``embed_dim``, ``n_layer``, ``bias``, ``mlp_ratio`` and ``n_head``."""
        if missing := [name for name in _FIELDS if name not in arrays]:
            raise DataError(f"the table has no array {missing[0]}; it has {list(arrays)}")
        width, layers, bias, ratio, heads = (arrays[name].astype(np.int64) for name in _FIELDS)
        most = max(self.layers)
        if ratio.ndim != 2 or ratio.shape[1] != most or heads.shape != ratio.shape:
            raise DataError(
                f"mlp_ratio and n_head have shapes {ratio.shape} and {heads.shape}; {self.name} "
                f"has {most} layers at most"
            )
        there = np.arange(most) < layers[:, None]
        return np.column_stack(
            [
                _index("embed_dim", width, self.widths),
                _index("n_layer", layers, self.layers),
                _index("bias", bias, _BIAS),
                _index("mlp_ratio", np.where(there, ratio, _RATIOS[0]), _RATIOS),
                _index("n_head", np.where(there, heads, self.heads[0]), self.heads),
            ]
        )

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return True for all networks."""
        return np.ones(len(codes), dtype=bool)

    def canonical(self, codes: Codes) -> Codes:
        """Return the codes with the first option at each layer that a network does not have."""
        there = np.arange(max(self.layers)) < self.depth(codes)[:, None]
        return np.where(np.hstack([np.ones((len(codes), _WHOLE), bool), there, there]), codes, 0)

    def depth(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return the number of layers of each network, (N,)."""
        return np.array(self.layers, dtype=np.int64)[codes[:, 1]]

    def parts(self, codes: Codes) -> Assembly:
        """Return the layers in their order."""
        most, biased = max(self.layers), codes[:, 2:_WHOLE]
        there = np.arange(most) < self.depth(codes)[:, None]
        ratio, heads = np.split(codes[:, _WHOLE:], 2, axis=1)
        chosen = (codes[:, :1] * len(_BIAS) + biased) * len(_RATIOS) + ratio
        chosen = 1 + chosen * len(self.heads) + heads
        return Assembly([_layers(self)] * most, np.where(there, chosen, _ABSENT))

    def steps(self, codes: Codes) -> OperatorCountTable:
        """Return the operator counts of all layers."""
        return OperatorCountTable.of_parts(self.parts(codes))


def _index(name: str, values: Codes, options: tuple[int, ...]) -> Codes:
    index = np.searchsorted(options, values).clip(max=len(options) - 1)
    wrong = np.argwhere(np.take(options, index) != values)
    if len(wrong):
        place = tuple(wrong[0])
        raise DataError(f"{name} is {values[place]} in row {place[0]}; expected one of {options}")
    return index


@cache
def _layers(space: HwGptSpace) -> tuple[Counter[OperatorSignature], ...]:
    """Return the operator counts of no layer and of each possible one."""
    return Counter(), *(
        _layer(width, bool(bias), ratio, heads)
        for width in space.widths
        for bias in _BIAS
        for ratio in _RATIOS
        for heads in space.heads
    )


def _layer(width: int, biased: bool, ratio: int, heads: int) -> Counter[OperatorSignature]:
    tokens = _BYTES * _TOKENS * width
    scores = _BYTES * _TOKENS**2 * heads
    product = _TOKENS**2 * width
    steps = [
        OperatorSignature("layer_norm", 0, tokens, tokens, 2 * _BYTES * width),
        _linear(width, 3 * width, biased),
        OperatorSignature("matmul", product, 2 * tokens, scores),
        OperatorSignature("activation", 0, scores, scores),
        OperatorSignature("matmul", product, scores + tokens, tokens),
        _linear(width, width, biased),
        OperatorSignature("elementwise", 0, 2 * tokens, tokens),
        OperatorSignature("layer_norm", 0, tokens, tokens, 2 * _BYTES * width),
        _linear(width, ratio * width, biased),
        OperatorSignature("activation", 0, ratio * tokens, ratio * tokens),
        _linear(ratio * width, width, biased),
        OperatorSignature("elementwise", 0, 2 * tokens, tokens),
    ]
    return Counter(steps)


def _linear(inputs: int, outputs: int, biased: bool) -> OperatorSignature:
    read, written = (_BYTES * _TOKENS * channels for channels in (inputs, outputs))
    weights = _BYTES * (inputs + biased) * outputs
    return OperatorSignature("linear", _TOKENS * inputs * outputs, read, written, weights)
