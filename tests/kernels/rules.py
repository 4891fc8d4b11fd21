"""Specification of the kernels in planted/ and correct/: rows minus their mean, times a weight.

All listed sizes are square and multiples of 8, so the verifier has to try other sizes by itself.
"""

import torch

sizes = ({"rows": 8, "columns": 8}, {"rows": 16, "columns": 16})
dtypes = ("float16", "float32")


def inputs(sizes, dtype, generator):
    rows, columns = sizes["rows"], sizes["columns"]
    return {
        "x": torch.randn(rows, columns, generator=generator).to(dtype),
        "weight": torch.randn(columns, generator=generator).to(dtype),
    }


def reference(x, weight):
    return (x - x.mean(1, keepdim=True)) * weight
