"""Studies: stored trials of a search, in a file of its own or shared with other searches."""

__all__: list[str] = []
