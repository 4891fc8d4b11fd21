"""Algorithms of evolution: mating and survival selection."""

__all__: list[str] = []
