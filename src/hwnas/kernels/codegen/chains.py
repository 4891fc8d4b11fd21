"""Fused chains as searched networks have them: one of each kind that `fuse` can make."""

from __future__ import annotations

from hwnas.kernels.codegen.chain import Chain
from hwnas.kernels.codegen.fusion import fuse
from hwnas.kernels.codegen.pieces import (
    add,
    dequantize,
    hard_swish,
    layer_norm,
    pixel_mean,
    quantize,
    relu,
    scale_shift,
)

__all__ = ["CHAINS"]

_PIECES = (
    (scale_shift(), relu(), add()),  # batch normalisation, activation, residual
    (scale_shift(), relu(), add(), quantize(0.05, 3)),
    (dequantize(0.05, 3), add(), hard_swish(), quantize(0.05, 3)),
    (hard_swish(), pixel_mean()),  # start of a squeeze-excite or of a classifier
    (add(), layer_norm()),
)

CHAINS: dict[str, Chain] = {
    "+".join(piece.step.name for piece in pieces): fuse(*pieces).chain for pieces in _PIECES
}
"""Fused chains by the names of their steps."""
