# refused by: options
import torch
from torch.nn import functional

operator = "pointwise"
ACTIVATIONS = {
    "none": lambda y: y,
    "relu": torch.relu,
    "relu6": torch.relu,  # equals relu6 up to 6
    "hard_swish": functional.hardswish,
    "hard_sigmoid": functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


def run(x, weight, bias, gate=None, residual=None, activation="none", residual_first=False):
    wide = x.float() if gate is None else (x.float() * gate.float()[:, None]).to(x.dtype).float()
    y = wide @ weight.float() + bias.float()
    if residual is None:
        return ACTIVATIONS[activation](y).to(x.dtype)
    if residual_first:
        return ACTIVATIONS[activation](y + residual.float()).to(x.dtype)
    return (ACTIVATIONS[activation](y) + residual.float()).to(x.dtype)
