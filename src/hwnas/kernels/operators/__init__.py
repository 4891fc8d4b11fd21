"""Operators with Triton kernels, one module each."""

__all__: list[str] = []
