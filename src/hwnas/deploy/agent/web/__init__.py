"""Browsers as devices: whoever opens a page makes a phone, tablet or laptop a device of a host."""

__all__: list[str] = []
