"""Supernets: networks of a space that share weights."""

__all__: list[str] = []
