"""Measurement of latency, energy and memory on a target."""

__all__: list[str] = []
