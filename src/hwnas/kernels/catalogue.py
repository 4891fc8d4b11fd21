"""Registry of all operators by name."""

from __future__ import annotations

from hwnas.kernels.operator import Operator
from hwnas.kernels.operators.attention import attention
from hwnas.kernels.operators.block_sparse import block_sparse
from hwnas.kernels.operators.convolution import convolution
from hwnas.kernels.operators.depthwise import depthwise
from hwnas.kernels.operators.depthwise_pointwise import depthwise_pointwise
from hwnas.kernels.operators.im2win import im2win
from hwnas.kernels.operators.int8_convolution import int8_convolution
from hwnas.kernels.operators.int8_depthwise import int8_depthwise
from hwnas.kernels.operators.int8_pointwise import int8_pointwise
from hwnas.kernels.operators.inverted_bottleneck import inverted_bottleneck
from hwnas.kernels.operators.norm_linear import norm_linear
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.operators.recurrent import recurrent
from hwnas.kernels.operators.slim_attention import slim_attention
from hwnas.kernels.operators.two_four import two_four

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
