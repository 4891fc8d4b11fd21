"""Commands on the networks of a search, or on any ONNX file."""

from hwnas.cli.networks import (
    bundles,
    caching,
    cascades,
    check,
    convert,
    evaluate,
    finetune,
    plan,
    serve,
    sweep,
)

__all__ = [
    "bundles",
    "caching",
    "cascades",
    "check",
    "convert",
    "evaluate",
    "finetune",
    "plan",
    "serve",
    "sweep",
]
