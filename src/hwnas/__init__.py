"""Hardware-aware neural architecture search: search, measure and package networks for a device."""

__all__ = ["__version__"]

__version__ = "0.1.0"
