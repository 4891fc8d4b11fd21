"""Gate for continuous integration: checks a network's costs and quality against limits."""

__all__: list[str] = []
