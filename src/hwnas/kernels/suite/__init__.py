"""Suite that checks operators on backends, and benchmarks that time them."""

__all__: list[str] = []
