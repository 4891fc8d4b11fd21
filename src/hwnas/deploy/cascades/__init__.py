"""Cascades of two networks: the large one answers if the small one is not confident."""

__all__: list[str] = []
