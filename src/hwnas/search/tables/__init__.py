"""Benchmarks of samplers on published tables, in which evaluations cost nothing."""

from hwnas.search.tables.benchmark import SearchRow, bench_search
from hwnas.search.tables.hints import Calibration, known_prices
from hwnas.search.tables.table import ObjectiveTable, read_objective_table, read_test_table
from hwnas.search.tables.yardstick import Yardstick, tight_box, wide_box

__all__ = [
    "Calibration",
    "ObjectiveTable",
    "SearchRow",
    "Yardstick",
    "bench_search",
    "known_prices",
    "read_objective_table",
    "read_test_table",
    "tight_box",
    "wide_box",
]
