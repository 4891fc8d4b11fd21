"""Kernel that keeps a workspace, which is no output, between calls."""

WORKSPACE = {}


def run(x, weight):
    space = WORKSPACE.setdefault(x.shape, x.new_empty(x.shape).float())
    space.copy_(x)
    space -= space.mean(1, keepdim=True)
    space *= weight
    return space.to(x.dtype, copy=True)
