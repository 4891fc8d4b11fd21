"""Learning tasks, which define losses, metrics and the meaning of outputs."""

__all__: list[str] = []
