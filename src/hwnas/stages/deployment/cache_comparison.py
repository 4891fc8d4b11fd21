"""Comparison of a bundle or cascade with and without a cache, on a stream that repeats images."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.caching import CacheCounts, NearRule, PredictionCache, fit_near
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.errors import ConfigError
from hwnas.search import Split
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.stages.deployment.model_source import Images, images_for, images_of_bundle
from hwnas.stages.deployment.streams import RepeatedStream, StreamSettings

__all__ = ["CacheComparison", "ServedWay", "compare_cache", "fitted_near"]

_WARMUP = 5
Model = Bundle | Cascade


@dataclass(frozen=True)
class ServedWay:
    """Latency and quality of a stream's answers.

    Attributes:
        mean_ms: Mean time of an image with preprocessing, one image at a time, in milliseconds.
        latency_ms: Quantiles of that time over the images.
        metrics: Metrics of the task over the stream, by name.
        big_share: Share of the answers that come from the big network of a cascade; None for a
            bundle.
    """

    mean_ms: float
    latency_ms: Quantiles
    metrics: dict[str, float]
    big_share: float | None = None


@dataclass(frozen=True)
class CacheComparison:
    """Result of `compare_cache`.

    Attributes:
        images: Number of images of the stream.
        settings: Settings of the stream.
        without: The model alone.
        cached: The model with the cache.
        counts: Hits and misses of the cache, and its size at the end.
        differing: Share of the images to which the two give another class, or outputs that differ
            by more than rounding if the task has no classes.
        near: Rule for nearly equal images; None if only equal images are reused.
    """

    images: int
    settings: StreamSettings
    without: ServedWay
    cached: ServedWay
    counts: CacheCounts
    differing: float
    near: NearRule | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        counts = {**asdict(self.counts), "hit_rate": self.counts.hit_rate}
        return {**asdict(self), "counts": counts}


def fitted_near(model: Model, source: str, risk: float) -> NearRule:
    """Fit the rule for nearly equal images on the validation images of a source.

    Args:
        model: Bundle or cascade of a classification task.
        source: Images, as ``data.source`` of a recipe.
        risk: Largest share of the reused answers that may differ from the model's own, in 0..1.

    Raises:
        ConfigError: The model does not classify, or the risk is not between 0 and 1.
        DataError: The images do not fit the model.
        InfeasibleError: No distance keeps the risk.
    """
    if model.outputs.kind != "class_scores":
        raise ConfigError(
            f"the model gives {model.outputs.kind}; near repeats need class_scores, which say "
            "whether two answers are the same"
        )
    if not 0 < risk < 1:
        raise ConfigError(f"the risk of near repeats is {risk:g}; expected a share such as 0.05")
    images = _all_of(_images(model, source).data.validation)
    return fit_near(images, _outputs(model, images, None)[0].argmax(1), risk)


def compare_cache(
    model: Model, source: str, settings: StreamSettings, cache: PredictionCache
) -> CacheComparison:
    """Run a stream with repeats through a model twice, with and without a cache.

    The two take turns at every image, and the first of them alternates. Images are decoded before.

    Args:
        model: Bundle or cascade.
        source: Folder of a run, or images as ``data.source`` of a recipe; the test images are the
            stream.
        settings: Settings of the stream.
        cache: New cache.

    Raises:
        ConfigError: A task or source is unknown.
        DataError: The images do not fit the model.
    """
    known = _images(model, source)
    stream = RepeatedStream.of(known.data.test, settings)
    for image in stream.images[:_WARMUP]:
        _outputs(model, image[None], None)
    taken: dict[bool, list[tuple[float, NDArray[Any], bool]]] = {False: [], True: []}
    for number, image in enumerate(stream.images):
        for cached in (False, True) if number % 2 else (True, False):
            began = time.perf_counter()
            outputs, big = _outputs(model, image[None], cache if cached else None)
            taken[cached].append((1e3 * (time.perf_counter() - began), outputs[0], bool(big[0])))
    ways = {cached: _way(model, known, stream, taken[cached]) for cached in taken}
    one, two = (np.stack([outputs for _, outputs, _ in taken[cached]]) for cached in taken)
    differing = np.abs(one - two).reshape(len(one), -1).max(1) > 1e-3 * np.abs(one).max()
    if model.outputs.kind == "class_scores":
        differing = one.argmax(1) != two.argmax(1)
    return CacheComparison(
        len(stream.images),
        settings,
        ways[False],
        ways[True],
        cache.counts,
        float(differing.mean()),
        cache.near,
    )


def _way(
    model: Model,
    known: Images,
    stream: RepeatedStream,
    taken: list[tuple[float, NDArray[Any], bool]],
) -> ServedWay:
    times, outputs, big = (list(each) for each in zip(*taken, strict=True))
    metrics = SplitMetrics(known.task)
    metrics.add(torch.from_numpy(np.stack(outputs)).float(), torch.from_numpy(stream.targets))
    p20, p50, p80 = np.quantile(times, [0.2, 0.5, 0.8]).tolist()
    return ServedWay(
        float(np.mean(times)),
        Quantiles(p20, p50, p80),
        {name: found.value for name, found in metrics.values().items()},
        float(np.mean(big)) if isinstance(model, Cascade) else None,
    )


def _outputs(
    model: Model, images: NDArray[np.uint8], cache: PredictionCache | None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return outputs, and a mask of those from the big network of a cascade."""
    if isinstance(model, Cascade):
        return model.predict(images, cache)
    return model.predict(images, cache), np.zeros(len(images), np.bool_)


def _images(model: Model, source: str) -> Images:
    if isinstance(model, Cascade):
        how = model.small.preprocessing.at(*model.reading_size)
        return images_for(model, how, "classification", source)
    return images_of_bundle(model, source)


def _all_of(split: Split) -> NDArray[np.uint8]:
    images, _ = split.take(np.arange(len(split)))
    return images
