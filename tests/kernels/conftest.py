"""Run Triton kernels in the interpreter; Triton reads this variable when a kernel is defined."""

import os

os.environ["TRITON_INTERPRET"] = "1"
