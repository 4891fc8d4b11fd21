"""Features of networks, from which their costs are predicted."""

__all__: list[str] = []
