"""Targets of deployment: devices, runtimes, number formats, and what this machine offers."""

__all__: list[str] = []
