"""Metrics beside latency: peak memory, and the cost of matrix products."""

__all__: list[str] = []
