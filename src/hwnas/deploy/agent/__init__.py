"""Devices elsewhere: an agent that measures on its machine, and what asks it to."""

__all__: list[str] = []
