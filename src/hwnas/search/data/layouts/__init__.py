"""Layouts of image data in a folder, each with its manifest and its reader."""

__all__: list[str] = []
