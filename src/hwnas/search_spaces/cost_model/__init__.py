"""Costs of networks that are counted without running them: operators and their sizes."""

__all__: list[str] = []
