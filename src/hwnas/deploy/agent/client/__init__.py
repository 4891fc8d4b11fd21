"""Client of agents: added devices, and requests to them."""

__all__: list[str] = []
