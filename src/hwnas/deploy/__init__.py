"""Export of networks to ONNX, deployment bundles, runtimes, and latency measurement on targets.

Names are imported when they are first used, so that processes which only time networks, or only
serve as an agent, start without PyTorch. ``__init__.pyi`` lists the names.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
