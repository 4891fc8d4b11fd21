"""Operators in Triton for the networks that a search finds.

Import from the modules: Triton has to be told whether it interprets (``TRITON_INTERPRET=1``) before
the first kernel is defined, which a package that imports all of them would forestall.
"""

__all__: list[str] = []
