"""Image data sets: sources, caches, manifests and splits."""

__all__: list[str] = []
