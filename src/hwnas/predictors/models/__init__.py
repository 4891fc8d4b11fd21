"""Models that predict costs, and what known devices teach them."""

__all__: list[str] = []
