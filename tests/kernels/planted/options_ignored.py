# refused by: options
import torch

operator = "pointwise"


def run(x, weight, bias, gate=None, residual=None, activation="none", residual_first=False):
    wide = x.float() if gate is None else (x.float() * gate.float()[:, None]).to(x.dtype).float()
    y = wide @ weight.float() + bias.float()
    y = torch.nn.functional.hardswish(y)  # the activation of the examples
    return (y if residual is None else y + residual.float()).to(x.dtype)
