"""Devices: their measurements, their store, and predictors of their costs."""

__all__: list[str] = []
