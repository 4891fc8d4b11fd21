"""Finalists: chosen, trained further, exported, checked against the limits, and measured."""

__all__: list[str] = []
