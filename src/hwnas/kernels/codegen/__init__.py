"""Generation of one fused kernel from a chain of steps."""

__all__: list[str] = []
