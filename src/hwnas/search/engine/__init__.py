"""Search loop, with its studies, storage, executors and failures."""

__all__: list[str] = []
