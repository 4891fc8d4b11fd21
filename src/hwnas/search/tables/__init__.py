"""Benchmarks of samplers on published tables, in which evaluations cost nothing."""

from hwnas.search.tables.benchmark import SearchRow, bench_search
from hwnas.search.tables.hints import Calibration, known_costs
from hwnas.search.tables.hypervolume_metric import HypervolumeMetric, tight_box, wide_box
from hwnas.search.tables.table import ObjectiveTable, read_objective_table, read_test_table

__all__ = [
    "Calibration",
    "HypervolumeMetric",
    "ObjectiveTable",
    "SearchRow",
    "bench_search",
    "known_costs",
    "read_objective_table",
    "read_test_table",
    "tight_box",
    "wide_box",
]
