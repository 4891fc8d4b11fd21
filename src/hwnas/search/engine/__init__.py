"""Search loop, with its executors, failures and successive halving."""

__all__: list[str] = []
