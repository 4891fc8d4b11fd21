"""Recurrent layers (LSTM and GRU) with all their time steps in one kernel.

As in FlashRNN (Poeppel, Beck and Hochreiter, ICLR 2025), the part of the gates that depends on the
input is one product for all steps, computed before this kernel. Each step only needs the product
with the last output, so its weights are read once and stay on chip if they fit, output and state
stay in registers, and a step costs no launch and no wait for memory. Heads are blocks on the
diagonal of the recurrent weights and independent of each other, so each is a program of its own.
LSTM (Hochreiter and Schmidhuber, Neural Computation 1997) and GRU (Cho et al., EMNLP 2014) are as
in PyTorch:

LSTM: i, f, o = sigmoid(x + h R), g = tanh(x + h R);  c' = f c + i g; h' = o tanh(c')
GRU:  r, z = sigmoid(x + h R), n = tanh(x + r (h R + b)); h' = (1 - z) n + z h
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.tiles import load_tile, power_block, powers
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Recurrent", "recurrent"]

LSTM, GRU = 4, 3  # numbers of gates
WIDEST = 128  # most channels of a head


@triton.jit
def recurrent_kernel(
    x,  # (N, T, gates, H)
    weight,  # (h, gates, d, d)
    hidden,  # (N, H) or None
    cell,  # (N, H) or None
    bias,  # (H,) or None
    y,  # (N, T, H)
    last,  # (N, H)
    N,
    T,
    H,
    GATES: tl.constexpr,
    WIDTH: tl.constexpr,  # d
    UPCAST: tl.constexpr,
    KEEP: tl.constexpr,  # whether weights stay on chip, or are read again at each step
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute one head of BLOCK_N sequences in each program."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK_D)
    mask = (rows[:, None] < N) & (columns[None, :] < WIDTH)
    channels = head * WIDTH + columns[None, :]
    weight += head * (GATES * WIDTH * WIDTH)
    x += rows[:, None] * (T * GATES * H) + channels
    y += rows[:, None] * (T * H) + channels
    state = rows[:, None] * H + channels
    h = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    c = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    recurrent_bias = tl.zeros((1, BLOCK_D), tl.float32)
    if hidden is not None:
        h = tl.load(hidden + state, mask=mask, other=0.0).to(tl.float32)
    if cell is not None:
        c = tl.load(cell + state, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        recurrent_bias += tl.load(bias + channels, mask=columns[None, :] < WIDTH, other=0.0)
    if KEEP:
        w0 = _matrix(weight, 0, columns, WIDTH, UPCAST)
        w1 = _matrix(weight, 1, columns, WIDTH, UPCAST)
        w2 = _matrix(weight, 2, columns, WIDTH, UPCAST)
        if GATES == 4:
            w3 = _matrix(weight, 3, columns, WIDTH, UPCAST)
    x0, x1, x2, x3 = _gates(x, H, mask, GATES)
    for step in range(T):
        # The gates of the next step are loaded during this one; the last step has no next one.
        x += GATES * H * tl.minimum(T - 1 - step, 1)
        next0, next1, next2, next3 = _gates(x, H, mask, GATES)
        if not KEEP:  # one by one: all at once would not fit into registers
            w0 = _matrix(weight, 0, columns, WIDTH, UPCAST)
        first = tl.sigmoid(x0.to(tl.float32) + _times(h, w0))
        if not KEEP:
            w1 = _matrix(weight, 1, columns, WIDTH, UPCAST)
        second = tl.sigmoid(x1.to(tl.float32) + _times(h, w1))
        if not KEEP:
            w2 = _matrix(weight, 2, columns, WIDTH, UPCAST)
        given, third = x2.to(tl.float32), _times(h, w2)
        if GATES == 4:
            if not KEEP:
                w3 = _matrix(weight, 3, columns, WIDTH, UPCAST)
            c = second * c + first * _tanh(given + third)
            h = tl.sigmoid(x3.to(tl.float32) + _times(h, w3)) * _tanh(c)
        else:
            new = _tanh(given + first * (third + recurrent_bias))
            h = new + second * (h - new)
        tl.store(y, h.to(y.dtype.element_ty), mask=mask)
        y += H
        x0, x1, x2, x3 = next0, next1, next2, next3
    if GATES == 3:
        c = h
    tl.store(last + state, c.to(last.dtype.element_ty), mask=mask)


@triton.jit
def _matrix(weight, gate, columns, WIDTH: tl.constexpr, UPCAST: tl.constexpr):
    """Return the recurrent weights of one gate of a head, (d, d)."""
    return load_tile(weight + gate * WIDTH * WIDTH, columns, WIDTH, WIDTH, columns, WIDTH, UPCAST)


@triton.jit
def _gates(x, H, mask, GATES: tl.constexpr):
    """Return the contribution of the input to each gate in one step."""
    x0 = tl.load(x, mask=mask, other=0.0)
    x1 = tl.load(x + H, mask=mask, other=0.0)
    x2 = tl.load(x + 2 * H, mask=mask, other=0.0)
    x3 = x2
    if GATES == 4:
        x3 = tl.load(x + 3 * H, mask=mask, other=0.0)
    return x0, x1, x2, x3


@triton.jit
def _times(h, w):
    """Return the contribution of outputs h, (BLOCK_N, d), to a gate with weights w, (d, d).

    Each row of w belongs to one sum. One sequence does not fill a tensor core; its sums along rows
    need no other warp.
    """
    if h.shape[0] == 1:
        return tl.sum(w.to(tl.float32) * h, 1)[None, :]
    else:
        return tl.dot(h.to(w.dtype), tl.trans(w), input_precision="ieee")


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


class Recurrent(Operator):
    """Recurrent layer, LSTM or GRU, with one or more heads.

    Bytes: x, R, b, first and last state and y, once each. Tolerance: outputs are rounded to the
    type of x before a product; the state is not rounded between steps.
    """

    name = "recurrent"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"sequences": 1, "steps": 5, "gates": LSTM, "heads": 3, "width": 13, "initial": 0},
        {"sequences": 19, "steps": 3, "gates": GRU, "heads": 1, "width": 24, "initial": 1},
        {"sequences": 5, "steps": 4, "gates": LSTM, "heads": 2, "width": 17, "initial": 1},
    )
    measured = (
        {"sequences": 1, "steps": 16, "gates": LSTM, "heads": 1, "width": 64, "initial": 0},
        {"sequences": 1, "steps": 16, "gates": LSTM, "heads": 1, "width": 128, "initial": 0},
    )
    batched = "sequences"

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        hidden: Tensor | None = None,
        cell: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the module's formulas in PyTorch.

        Args:
            x: Contributions of the input to the gates, (N, T, gates, H) with H = h d: the product
                of inputs and their weights, with all biases added except b. Four gates (i, f, g, o)
                are an LSTM, three (r, z, n) a GRU.
            weight: Recurrent weights, (h, gates, d, d): R transposed as in PyTorch, one row for
                each sum; d is at most 128.
            hidden: Output before the first step, (N, H); zeros if None.
            cell: State c before the first step of an LSTM, (N, H); zeros if None.
            bias: Bias b of a GRU, (H,); zeros if None.

        Returns:
            Outputs of all steps, (N, T, H), and the last state, (N, H): c of an LSTM, the last
            output of a GRU; in the type of x.
        """
        heads, gates, width, _ = weight.shape
        shape = heads, width
        xs, zeros = x.unflatten(3, shape), x.new_zeros(len(x), *shape)
        h = zeros if hidden is None else hidden.unflatten(1, shape)
        c = zeros if cell is None else cell.unflatten(1, shape)
        b = zeros[0] if bias is None else bias.unflatten(0, shape)
        outputs = []
        for step in range(x.shape[1]):
            products = torch.einsum("nhd,hged->gnhe", h, weight)
            first, second, third = xs[:, step, :3].unbind(1)
            first, second = (first + products[0]).sigmoid(), (second + products[1]).sigmoid()
            if gates == LSTM:
                c = second * c + first * (third + products[2]).tanh()
                h = (xs[:, step, 3] + products[3]).sigmoid() * c.tanh()
            else:
                new = (third + first * (products[2] + b)).tanh()
                h = (1 - second) * new + second * h
            outputs.append(h.flatten(1))
        last = c if gates == LSTM else h
        return torch.stack(outputs, 1), last.flatten(1).clone()

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return sequences, steps, gates, heads, channels of a head, and first state (0 or 1)."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        hidden, cell = inputs["hidden"], inputs["cell"]
        first = (*x.shape[:1], *x.shape[-1:])
        fits = (
            x.dim() == weight.dim() == 4
            and x.shape[1] >= 1
            and weight.shape[1] in (LSTM, GRU)
            and weight.shape[2] == weight.shape[3] <= WIDEST
            and x.shape[2:] == (weight.shape[1], weight.shape[0] * weight.shape[2])
            and (hidden is None or hidden.shape == first)
            and (cell is None or (cell.shape == first and weight.shape[1] == LSTM))
            and (bias is None or (bias.shape == first[1:] and weight.shape[1] == GRU))
        )
        takes = (
            "x (N, T, gates, h d), weight (h, gates, d, d), hidden (N, h d), for 4 gates (an LSTM) "
            "cell (N, h d), for 3 (a GRU) bias (h d,), with at least one step and d at most "
            f"{WIDEST}"
        )
        check_shapes(self.name, takes, fits, inputs)
        return {
            "sequences": x.shape[0],
            "steps": x.shape[1],
            "gates": weight.shape[1],
            "heads": weight.shape[0],
            "width": weight.shape[2],
            "initial": int(hidden is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; with a first state, all optional inputs are given."""
        normal = RandomValues(dtype, generator, device).normal
        rows, gates, heads, width = (sizes[k] for k in ("sequences", "gates", "heads", "width"))
        channels, initial = heads * width, sizes["initial"]
        return {
            "x": normal(rows, sizes["steps"], gates, channels),
            "weight": normal(heads, gates, width, width, scale=width**-0.5),
            "hidden": normal(rows, channels, scale=0.5) if initial else None,
            "cell": normal(rows, channels) if initial and gates == LSTM else None,
            "bias": normal(channels) if initial and gates == GRU else None,
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return empty tensors for the outputs of all steps and the last state."""
        x: Tensor = inputs["x"]
        rows, steps, _, channels = x.shape
        return x.new_empty(rows, steps, channels), x.new_empty(rows, channels)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        rows, steps, gates, channels = inputs["x"].shape
        heads, _, width, _ = inputs["weight"].shape
        return [
            Launch(
                recurrent_kernel,
                (triton.cdiv(rows, config["BLOCK_N"]), heads),
                inputs
                | {"y": outputs[0], "last": outputs[1], "N": rows, "T": steps, "H": channels},
                {
                    "GATES": gates,
                    "WIDTH": width,
                    "UPCAST": interpreting(),
                    "KEEP": bool(config["KEEP"]),
                    "BLOCK_N": config["BLOCK_N"],
                    "BLOCK_D": power_block(width),
                },
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks of 1 sequence, or 16 or 32 for tensor cores, with warps for the weights."""
        width, gates = power_block(sizes["width"]), sizes["gates"]
        blocks = (1, *powers(16, min(32, power_block(sizes["sequences"]))))

        def half(num_warps: int) -> int:
            """Return half of the registers that ``num_warps`` warps can have together."""
            threads = num_warps * WARP
            return min(gpu.registers_per_thread, gpu.registers // threads) // 2 * threads

        return Problem(
            {
                "BLOCK_N": blocks if dtype.itemsize <= 2 else (1,),  # float32 has no tensor cores
                "KEEP": (1, 0),
                "num_warps": (1, 2, 4, 8, 16),
                "num_stages": (1,),
            },
            (
                Constraint(
                    lambda BLOCK_N, KEEP, num_warps: (
                        not KEEP or _weight_registers(sizes, dtype, BLOCK_N) <= half(num_warps)
                    ),
                    "weights take more than half of the registers",
                ),
                Constraint(
                    lambda BLOCK_N, num_warps: (2 + 3 * gates) * BLOCK_N * width <= half(num_warps),
                    "gates take more than half of the registers",
                ),
                Constraint(
                    lambda num_warps: num_warps * 8 <= width,
                    "there are warps without columns",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return one sequence a program if they are few, since a tensor core would take 16."""
        warps = power_block(sizes["width"]) // 8
        room = 64 * warps * WARP
        alone = sizes["sequences"] < 4 and _weight_registers(sizes, dtype, 1) <= room
        block_n = 1 if alone or dtype.itemsize > 2 else 16
        return {
            "BLOCK_N": block_n,
            "KEEP": int(_weight_registers(sizes, dtype, block_n) <= room),
            "num_warps": warps,
            "num_stages": 1,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of the recurrent products."""
        rows, steps, gates, heads, width, initial = (sizes[name] for name in self.checked[0])
        channels = heads * width
        values = rows * channels * (steps * (gates + 1) + 1) + gates * channels * width
        if initial:
            values += channels * (2 * rows if gates == LSTM else rows + 1)
        return OperatorWork(values * dtype.itemsize, rows * steps * gates * channels * width)


def _weight_registers(sizes: Sizes, dtype: torch.dtype, block_n: int) -> int:
    """Return 4-byte registers for the weights of a head, which are float32 without tensor cores."""
    itemsize = dtype.itemsize if block_n > 1 else 4
    return sizes["gates"] * power_block(sizes["width"]) ** 2 * itemsize // 4


recurrent = Recurrent()


PLUGINS = (Plugin("operator", "recurrent", recurrent, "LSTM and GRU layers in one kernel"),)
