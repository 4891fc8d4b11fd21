"""Benchmark of methods that predict costs on unseen devices."""

__all__: list[str] = []
