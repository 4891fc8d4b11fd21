"""Patterns of operators in a network, each computed by one operator of hwnas's kernels."""

__all__: list[str] = []
