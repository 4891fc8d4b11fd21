"""Results of a run: summaries, fronts, comparisons."""

__all__: list[str] = []
