"""Means over the cases of an experiment whose subjects are ``"case method"``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from experiments.record import Row

__all__ = ["mean_over_cases"]


def mean_over_cases(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> list[Row]:
    """Return one row for each metric, group of cases and method, with the range over the cases.

    Args:
        rows: Rows of all cases.
        groups: Cases by the name of their mean; a group that lacks a case is left out.
    """
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        case, _, method = row.subject.rpartition(" ")
        found[row.metric, method, case] = row
    means = []
    for name, cases in groups.items():
        for metric, method in dict.fromkeys((metric, method) for metric, method, _ in found):
            some = [row for case in cases if (row := found.get((metric, method, case)))]
            values = [row.value for row in some if row.value is not None]
            if not cases or len(values) < len(cases):
                continue
            spread = {"least": min(values), "most": max(values)}
            n = sum(row.n for row in some)
            subject = f"{name} {method}"
            means.append(Row(metric, subject, 0, fmean(values), some[0].unit, n, spread))
    return means
