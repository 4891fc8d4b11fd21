"""Metrics on devices, such as peak memory, and the cost of matrix products."""

__all__: list[str] = []
