"""Bundles: folders with a network, its measurements and its provenance."""

__all__: list[str] = []
