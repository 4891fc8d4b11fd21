"""Registry of all operators by name."""

from __future__ import annotations

from hwnas.kernels.attention import attention
from hwnas.kernels.block_sparse import block_sparse
from hwnas.kernels.convolution import convolution
from hwnas.kernels.depthwise import depthwise
from hwnas.kernels.depthwise_pointwise import depthwise_pointwise
from hwnas.kernels.im2win import im2win
from hwnas.kernels.int8_convolution import int8_convolution
from hwnas.kernels.int8_depthwise import int8_depthwise
from hwnas.kernels.int8_pointwise import int8_pointwise
from hwnas.kernels.inverted_bottleneck import inverted_bottleneck
from hwnas.kernels.norm_linear import norm_linear
from hwnas.kernels.operator import Operator
from hwnas.kernels.pointwise import pointwise
from hwnas.kernels.recurrent import recurrent
from hwnas.kernels.slim_attention import slim_attention
from hwnas.kernels.two_four import two_four

__all__ = ["OPERATORS"]

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        pointwise,
        depthwise,
        depthwise_pointwise,
        inverted_bottleneck,
        int8_pointwise,
        int8_depthwise,
        int8_convolution,
        convolution,
        im2win,
        norm_linear,
        attention,
        slim_attention,
        recurrent,
        block_sparse,
        two_four,
    )
}
