"""Options of a cache of outputs, and the command that compares a model with and without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import NETWORKS, BundlePath, Json, app, out, print_json
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.deploy.caching import PredictionCache
    from hwnas.deploy.cascades.cascade import Cascade
    from hwnas.stages.deployment.cache_comparison import CacheComparison

__all__ = ["ENTRIES", "CacheData", "CacheEntries", "CacheMb", "CacheNear", "cache_of"]

CacheMb = Annotated[
    float | None,
    typer.Option(help="Keep answers to images in a cache of this size, in MB; off if not given"),
]
CacheEntries = Annotated[int, typer.Option(min=1, help="Most images in the cache")]
CacheNear = Annotated[
    float | None,
    typer.Option(
        help="Also reuse answers to nearly equal images, at most this share of which differ from "
        "the model's own, e.g. 0.05; needs --cache-data"
    ),
]
CacheData = Annotated[
    str | None,
    typer.Option(
        help="Run, or images as data.source, whose validation split --cache-near is fitted on"
    ),
]
ENTRIES = 100_000


def cache_of(
    model: Bundle | Cascade, mb: float | None, entries: int, near: float | None, data: str | None
) -> PredictionCache | None:
    """Return the cache that the options describe; None without ``--cache-mb``.

    Raises:
        ConfigError: An option is out of range, or needs another one.
        DataError: The images do not fit the model.
        InfeasibleError: No distance of near repeats keeps the risk.
    """
    if mb is None:
        if near is not None or data is not None or entries != ENTRIES:
            raise ConfigError("the options of a cache need --cache-mb, its size in MB")
        return None
    if (near is None) != (data is None):
        raise ConfigError(
            "--cache-near and --cache-data belong together: the risk, and images to fit it on"
        )
    from hwnas.deploy.caching import PredictionCache

    cache = PredictionCache(mb * 1e6, entries)  # refuses a wrong size before a rule is fitted
    if near is None or data is None:
        return cache
    from hwnas.stages.deployment.cache_comparison import fitted_near

    return PredictionCache(mb * 1e6, entries, fitted_near(model, data, near))


@app.command("cache", rich_help_panel=NETWORKS)
def compare(
    bundle: BundlePath,
    data: Annotated[
        str, typer.Option(help="Run, or images as data.source, whose test split is the stream")
    ],
    images: Annotated[int, typer.Option(min=2, help="Images of the stream")] = 500,
    repeats: Annotated[
        float, typer.Option(help="Probability that an image is one of those before it, 0 to 1")
    ] = 0.5,
    noise: Annotated[
        int, typer.Option(help="Largest change of a pixel of a repeated image, in levels of 255")
    ] = 0,
    cache_mb: Annotated[float, typer.Option(help="Size of the cache, in MB")] = 64,
    cache_entries: CacheEntries = ENTRIES,
    cache_near: Annotated[
        float | None,
        typer.Option(
            help="Also reuse answers to nearly equal images, at most this share of which differ "
            "from the model's own; fitted on the validation split of --data"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the stream")] = 0,
    as_json: Json = False,
) -> None:
    """Compare a bundle or a cascade with and without a cache, on a stream with repeats."""
    from hwnas.deploy.cascades.cascade import open_packed
    from hwnas.stages.deployment.cache_comparison import compare_cache
    from hwnas.stages.deployment.streams import StreamSettings

    settings = StreamSettings(images, repeats, noise, seed)
    model = open_packed(Path(bundle))
    fitted_on = None if cache_near is None else data
    cache = cache_of(model, cache_mb, cache_entries, cache_near, fitted_on)
    assert cache is not None
    found = compare_cache(model, data, settings, cache)
    if as_json:
        print_json(found.to_json())
        return
    _show(found)


def _show(found: CacheComparison) -> None:
    from hwnas.cli.terminal import table_of

    counts, settings = found.counts, found.settings
    names = list(found.without.metrics)
    rows = []
    for name, way in (("without cache", found.without), ("with cache", found.cached)):
        quantiles = way.latency_ms
        times = [f"{way.mean_ms:.3g}", f"{quantiles.p50:.3g}", f"{quantiles.p80:.3g}"]
        big = "-" if way.big_share is None else f"{way.big_share:.1%}"
        rows.append([name, *times, *(f"{way.metrics[each]:.4f}" for each in names), big])
    title = f"{found.images} images, of which {settings.repeats:.0%} are repeats"
    if settings.noise:
        title += f" with noise of {settings.noise} levels"
    out.print(table_of(["", "mean ms", "p50 ms", "p80 ms", *names, "big network"], rows, title))
    out.print(
        f"hit rate {counts.hit_rate:.1%}: {counts.hits} equal, {counts.near_hits} near, "
        f"{counts.misses} computed; {counts.entries} entries, {counts.bytes / 1e6:.3g} MB; "
        f"{found.differing:.2%} of the answers differ",
        soft_wrap=True,
    )
    if found.near is not None:
        near = found.near
        out.print(
            f"near: distance {near.distance:.3g}, fitted on {near.images} validation images, "
            f"{near.share:.1%} of which have so near a neighbour; {near.differing:.2%} of these "
            f"have another answer (risk {near.risk:g})",
            soft_wrap=True,
        )
    out.print(
        "times: measured by the wall clock, one image at a time, with preprocessing, without "
        "decoding",
        style="dim",
        soft_wrap=True,
    )
