"""Quantisation to int8: calibration ranges, saturation, and the conversion."""

__all__: list[str] = []
