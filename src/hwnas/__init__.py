"""hwnas: networks searched for a device, measured on it, packed ready to deploy."""

__all__ = ["__version__"]

__version__ = "0.1.0"
