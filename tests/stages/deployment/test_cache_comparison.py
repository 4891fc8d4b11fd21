"""Streams with repeats, and the comparison of a model with and without a cache."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.errors import ConfigError
from hwnas.stages import Job
from hwnas.stages.deployment.streams import RepeatedStream, StreamSettings
from hwnas.stages.finalists.bundles import read_bundles

Command = Callable[..., Any]


@pytest.fixture
def bundle(finished: Path) -> Bundle:
    return next(iter(read_bundles(finished / "bundles").values()))


def test_stream_repeats_images_with_their_targets(job: Job) -> None:
    split = job.run_inputs.data.test
    settings = StreamSettings(images=300, repeats=0.6, seed=1)
    stream = RepeatedStream.of(split, settings)
    known: dict[bytes, int] = {}
    for image, target, repeat in zip(stream.images, stream.targets, stream.is_repeat, strict=True):
        if repeat:
            assert known[image.tobytes()] == target
        known.setdefault(image.tobytes(), target)
    assert stream.is_repeat.mean() == pytest.approx(0.6, abs=0.1)
    assert np.array_equal(RepeatedStream.of(split, settings).images, stream.images)
    noisy = RepeatedStream.of(split, StreamSettings(300, 0.6, noise=3, seed=1))
    change = np.abs(noisy.images.astype(int) - stream.images).reshape(300, -1).max(1)
    assert change[noisy.is_repeat].max() == 3
    assert not change[~noisy.is_repeat].any()
    whole = RepeatedStream.of(split, StreamSettings(len(split) + 5, 0.0))
    assert whole.is_repeat.sum() == 5


@pytest.mark.parametrize(
    "values", [{"images": 1}, {"repeats": 1.0}, {"repeats": -0.1}, {"noise": 256}]
)
def test_stream_settings_refuse_values_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        StreamSettings(**values)


@pytest.mark.slow
def test_cache_command_compares_a_model_with_and_without_a_cache(
    hwnas: Command, bundle: Bundle
) -> None:
    asked = ("cache", bundle.folder, "--data", "digits", "--images", "200")
    found = json.loads(hwnas(*asked, "--repeats", "0.7", "--json").out)
    assert found["without"]["metrics"] == found["cached"]["metrics"]
    assert found["differing"] == 0
    assert found["counts"]["hit_rate"] == pytest.approx(0.7, abs=0.12)
    assert found["cached"]["mean_ms"] > 0
    small = json.loads(hwnas(*asked, "--repeats", "0.7", "--cache-entries", "1", "--json").out)
    assert small["counts"]["entries"] == 1
    assert small["counts"]["hit_rate"] < 0.2
    noisy = (*asked, "--repeats", "0.7", "--noise", "2")
    near = json.loads(hwnas(*noisy, "--cache-near", "0.9", "--json").out)
    assert near["counts"]["near_hits"] > 100
    assert near["near"]["risk"] == 0.9
    shown = hwnas(*noisy, "--cache-near", "0.9").out
    assert "hit rate" in shown
    assert "fitted on 144 validation images" in shown


def test_cache_options_are_refused_in_one_line(
    hwnas: Command, bundle: Bundle, finished: Path
) -> None:
    image = finished / "example.png"
    run = ("run", bundle.folder, image)
    hwnas(*run, "--cache-near", "0.1").refused("need --cache-mb")
    hwnas(*run, "--cache-mb", "1", "--cache-near", "0.1").refused("--cache-data belong together")
    hwnas(*run, "--cache-mb", "0").refused("max_bytes of a cache is 0")
    data = ("--cache-data", "digits")
    hwnas(*run, "--cache-mb", "1", *data, "--cache-near", "2").refused("risk of near repeats is 2")
    hwnas(*run, "--cache-mb", "1", *data, "--cache-near", "1e-9").refused("no distance")
    hwnas("serve", bundle.folder, "--cache-entries", "5").refused("need --cache-mb")
    hwnas("cache", bundle.folder, "--data", "digits", "--repeats", "2").refused("share of repeats")
    answer = hwnas("run", bundle.folder, image, image, image, "--cache-mb", "1")
    assert len(set(answer.out.splitlines())) == 1
    assert "cache: 3 images, 2 equal to an earlier one" in answer.err
