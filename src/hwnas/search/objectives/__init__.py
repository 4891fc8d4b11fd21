"""Objectives and limits of a search, costs of candidates, and Pareto fronts."""

__all__: list[str] = []
