"""Triton operators for the networks that a search finds. None is here yet."""

__all__: list[str] = []
