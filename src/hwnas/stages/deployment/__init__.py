"""Work on the networks of a finished run: compression, cascades, checks against a budget."""

__all__: list[str] = []
