from hwnas.kernels.operators.pointwise import pointwise

operator = "pointwise"


def run(x, weight, bias, gate=None, residual=None, activation="none", residual_first=False):
    inputs = pointwise.bound(x, weight, bias, gate, residual, activation, residual_first)
    config = {
        "BLOCK_M": 32,
        "BLOCK_N": 16,
        "BLOCK_K": 16,
        "num_warps": 2,
        "num_stages": 1,
        "SPLIT_K": 1,
    }
    return pointwise.run(inputs, config)
