"""Evaluators of candidates, and the scores that they give."""

__all__: list[str] = []
