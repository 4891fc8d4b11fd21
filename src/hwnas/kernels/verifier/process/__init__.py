"""Process of a kernel: confined, watched, and given guarded tensors that report to be on a GPU."""

__all__: list[str] = []
