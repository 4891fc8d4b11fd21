"""Building blocks of kernels: tiles, windows, activations, rounding and requantisation."""

__all__: list[str] = []
