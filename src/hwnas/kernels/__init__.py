"""Triton operators for the networks that a search finds.

Import from the modules of this package: Triton has to know whether it interprets
(``TRITON_INTERPRET=1``) before the first kernel is defined, and a package that imports all modules
would define kernels too early.
"""

__all__: list[str] = []
