"""Kernels run in Triton's interpreter here, which must be said before they are defined."""

import os

os.environ["TRITON_INTERPRET"] = "1"
