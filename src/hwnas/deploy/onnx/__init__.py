"""ONNX graphs: reading them, running them in PyTorch, and counting their operators."""

__all__: list[str] = []
