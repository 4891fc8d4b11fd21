"""Conversion of kernel measurements to rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from experiments.kernels.place import CACHES
from experiments.record import Row
from hwnas.kernels.tuning.tuned import KERNEL, REFERENCE

__all__ = ["SPEEDUP", "complete", "race_rows", "summary"]

SPEEDUP = "speedup"
"""Metric of our speed-up over the fastest competitor."""


def race_rows(
    subject: str,
    found: Mapping[str, Any],
    words: Mapping[str, str],
    ceilings: Mapping[str, float],
) -> list[Row]:
    """Return a row for each state of the cache, without a value where nothing was timed.

    Args:
        subject: Subject of the rows.
        found: All that is known of it, with ``"moved_bytes"``, ``"macs"`` and ``"reason"``, the
            reason of a failure; and if it was timed ``"times"`` and ``"timing"`` by state of the
            cache.
        words: Configurations of competitors by name.
        ceilings: The GPU's ``"bytes"`` and ``"operations"`` per second, as far as they are known.
    """
    shared = {k: v for k, v in found.items() if k not in ("times", "timing")}
    if "times" not in found:
        shared["reason"] = found["reason"] or f"wrong, so not timed: {found.get('error')}"
        return [Row(SPEEDUP, f"{subject} {c}", 0, None, "ratio", 0, {}, shared) for c in CACHES]
    rows = []
    for cache, times in found["times"].items():
        rivals = {
            name: {**each, "configuration": words.get(name, name)}
            for name, each in times.items()
            if name != KERNEL
        }
        own = {"cache": cache, "timing": found["timing"][cache], "rivals": rivals}
        details = {**shared, **own, "ours_us": times.get(KERNEL)}
        rows.append(_row(f"{subject} {cache}", details, ceilings))
    return rows


def complete(row: Row) -> bool:
    """Return whether both kinds of competitors were timed: one eager, and one compiled."""
    if row.value is None:
        return False
    rivals = {k: v for k, v in row.details["rivals"].items() if k != REFERENCE}
    compiled = ["torch.compile" in each["configuration"] for each in rivals.values()]
    return any(compiled) and not all(compiled)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return geometric means over operators and over networks, by type and state of the cache."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric == SPEEDUP and row.value is not None:
            groups.setdefault(_group(row), []).append(row)
    return [mean for name, group in groups.items() for mean in _means(name, group)]


def _row(subject: str, details: dict[str, Any], ceilings: Mapping[str, float]) -> Row:
    ours, rivals = details["ours_us"], details["rivals"]
    if ours is None or not rivals:
        reason = f"ours: {details['absent'].get(KERNEL, 'timed')}; {len(rivals)} rivals"
        return Row(SPEEDUP, subject, 0, None, "ratio", 0, {}, {**details, "reason": reason})
    best = min(rivals, key=lambda name: rivals[name]["p50_us"])
    rival, seconds = rivals[best], ours["p50_us"] * 1e-6
    spread = {
        "least": rival["p20_us"] / ours["p80_us"],
        "most": rival["p80_us"] / ours["p20_us"],
    }
    reached = {
        "gb_per_s": details["moved_bytes"] / seconds / 1e9,
        "tflop_per_s": 2 * details["macs"] / seconds / 1e12,
    }
    if "bytes" in ceilings:
        reached["share_of_copy"] = reached["gb_per_s"] * 1e9 / ceilings["bytes"]
    if "operations" in ceilings:
        reached["share_of_product"] = reached["tflop_per_s"] * 1e12 / ceilings["operations"]
    chosen = details.get("kernel", True)
    as_chosen = ours if chosen or REFERENCE not in rivals else rivals[REFERENCE]
    more = {
        "best_rival": best,
        "runtime_chooses": KERNEL if chosen else REFERENCE,
        "as_chosen": rival["p50_us"] / as_chosen["p50_us"],
    }
    ratio = rival["p50_us"] / ours["p50_us"]
    return Row(
        SPEEDUP, subject, 0, ratio, "ratio", int(ours["n"]), spread, {**details, **reached, **more}
    )


def _group(row: Row) -> str:
    details = row.details
    batches = "b1+b8" if details["batch"] <= 8 else f"b{details['batch']}"
    kind = details["kind"]
    whole = kind if kind != "operators" else f"{kind} {batches}"
    return f"{whole} {details['dtype']} {details['cache']}"


def _means(name: str, group: Sequence[Row]) -> list[Row]:
    """Return means over the rows with both kinds of competitors; the other rows are counted."""
    whole = [row for row in group if complete(row)]
    if not whole:
        return []
    speedups = [row.value for row in whole if row.value is not None]
    slower = [
        row.subject
        for row in whole
        if row.details["runtime_chooses"] == KERNEL and (row.value or 0) < 1
    ]
    details = {
        "left_out": len(group) - len(whole),
        "slower": sum(value < 1 for value in speedups),
        "slower_than_a_rival_and_chosen": slower,
    }
    chosen = [row.details["as_chosen"] for row in whole]
    return [
        Row(metric, name, 0, _geometric(values), "ratio", len(values),
            {"least": min(values), "most": max(values)}, details)
        for metric, values in (("geometric_mean", speedups), ("geometric_mean_as_chosen", chosen))
    ]  # fmt: skip


def _geometric(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))
