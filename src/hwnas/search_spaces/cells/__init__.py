"""Space of cell networks: the networks of NAS-Bench-201."""

from hwnas.search_spaces.cells.space import CellSpace, nasbench201

__all__ = ["CellSpace", "nasbench201"]
