import collections
import enum
from typing import NamedTuple

import torch


class Size(NamedTuple):
    rows: int
    columns: int


class Way(enum.Enum):
    PLAIN = "plain"


Other = enum.Enum("Other", "a b")
Pair = collections.namedtuple("Pair", "one other")


def run(x, weight):
    size = Size(*x.shape)
    Inner = collections.namedtuple("Inner", "one")
    ones = torch.ones(size.columns, 1, device=x.device)
    wide = x.float()
    mean = wide @ ones / size.columns
    index = torch.arange(size.columns, device=x.device)
    on_host = torch.arange(3)
    assert on_host.device.type == "cpu"
    assert Inner(index.device).one == x.device
    return ((wide - mean) * weight.float()[index]).to(x.dtype)
