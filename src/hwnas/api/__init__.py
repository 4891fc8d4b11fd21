"""Public Python interface: the functions and classes that ``import hwnas`` offers."""

__all__: list[str] = []
