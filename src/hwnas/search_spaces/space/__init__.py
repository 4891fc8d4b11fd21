"""Search spaces: choices, architectures, and how they are sampled and encoded."""

__all__: list[str] = []
