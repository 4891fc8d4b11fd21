"""File formats of devices and frameworks, into which ONNX files are converted."""

__all__: list[str] = []
