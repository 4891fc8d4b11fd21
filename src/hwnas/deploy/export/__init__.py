"""Export of networks to ONNX, with a check that the file computes the same."""

__all__: list[str] = []
