"""Remote devices: an agent that measures networks on its machine, and the host's client of it."""

__all__: list[str] = []
