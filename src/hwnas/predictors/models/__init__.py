"""Models that predict costs, with transfer from known devices."""

__all__: list[str] = []
