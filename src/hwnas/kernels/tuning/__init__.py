"""Tuning of kernel configurations, and the choice of one at some sizes."""

__all__: list[str] = []
