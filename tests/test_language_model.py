"""Language models of bytes, from text files to a bundle that continues a prompt."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.deploy.text import BYTE_NAMES, continued, window_of
from hwnas.errors import ConfigError, DataError
from hwnas.progress import make_reporter
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.data.tokens import NO_TOKEN
from hwnas.search.tasks.language_model import language_model
from hwnas.search_spaces import decoder

Command = Callable[..., Any]

SENTENCE = "the cat sat on the mat and the dog sat on the log. "
RECIPE = """
name = "sentences"
seed = 1

[data]
source = "text:texts"
size = 32
validation_fraction = 0.2

[task]
name = "language-model"

[space]
name = "decoder"
preset = "tiny"

[train]
epochs = 12
learning_rate = 0.01
optimizer = "adamw"
batch_size = 16
workers = 0

[[objective]]
metric = "perplexity"
direction = "minimize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 6
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a recipe and two text files."""
    made = tmp_path_factory.mktemp("sentences")
    (made / "texts" / "deeper").mkdir(parents=True)
    (made / "texts" / "one.txt").write_text(SENTENCE * 150)
    (made / "texts" / "deeper" / "two.md").write_text(SENTENCE[7:] * 150)
    (made / "texts" / "ignored.png").write_bytes(b"\x89PNG\xff")
    (made / "recipe.toml").write_text(RECIPE)
    return made


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    experiment.run(folder / "recipe.toml", folder / "run", reporter=make_reporter(quiet=True))
    return Bundle.load(min((folder / "run" / "bundles").iterdir()))


def loaded(path: Path, tmp_path: Path, size: int = 8, **options: Any) -> ImageData:
    return load_data(DataConfig(f"text:{path}", 0.2, size, **options), tmp_path, 0, tmp_path)


# Data


@settings(max_examples=20)
@given(text=st.text(min_size=400, max_size=1500), size=st.integers(1, 40))
def test_windows_contain_every_byte_of_a_file_but_the_first_once(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("text")
    (tmp_path / "text.txt").write_bytes(text.encode())
    data = loaded(tmp_path / "text.txt", tmp_path, size)
    parts = [data.train, data.validation, data.test]
    rows = np.concatenate([part.positions for part in parts])
    assert sorted(rows) == list(range(len(rows)))
    images, targets = parts[0].images[np.sort(rows)], parts[0].image_targets[np.sort(rows)]
    assert images.shape[1:] == (1, size, 1)
    joined = targets.reshape(-1)
    assert bytes(joined[joined != NO_TOKEN]) == text.encode()[1:]
    assert (images[:, 0, 1:, 0] == np.where(targets == NO_TOKEN, 0, targets)[:, :-1]).all()


def test_windows_of_one_file_stay_in_one_split_if_there_are_many(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(25):
        (texts / f"{number}.txt").write_bytes(bytes([65 + number]) * 100)
    data = loaded(texts, tmp_path)
    seen = [set(part.take(range(len(part)))[0][:, 0, 0, 0]) for part in
            (data.train, data.validation, data.test)]  # fmt: skip
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_text_keeps_the_parts_of_its_folders(tmp_path: Path) -> None:
    for part, letter in (("train", "a"), ("val", "b"), ("test", "c")):
        (tmp_path / "texts" / part).mkdir(parents=True)
        (tmp_path / "texts" / part / "text.txt").write_text(letter * 200)
    data = loaded(tmp_path / "texts", tmp_path)
    for part, letter in ((data.train, "a"), (data.validation, "b"), (data.test, "c")):
        images, _ = part.take(range(len(part)))
        assert set(images[:, 0, 0, 0]) == {ord(letter)}


def test_text_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    with pytest.raises(DataError, match=r"texts has no text files; .* names that end in \.txt"):
        loaded(texts, tmp_path)
    (texts / "empty.txt").touch()
    (texts / "letter.txt").write_text("a")
    with pytest.raises(DataError, match="texts has no text in its part all"):
        loaded(texts, tmp_path)
    (texts / "good.txt").write_text("good " * 500)
    (texts / "latin.txt").write_bytes("für ".encode("latin-1") * 50)
    with pytest.raises(DataError, match=r"latin\.txt is not text in UTF-8; convert it, remove it"):
        loaded(texts, tmp_path)
    assert loaded(texts, tmp_path, skip_damaged=True).skipped == ("latin.txt",)
    with pytest.raises(ConfigError, match=r"data\.size is 4 x 8; for text give one number"):
        load_data(DataConfig(f"text:{texts}", size=(4, 8)), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match="there is no file or folder"):
        loaded(tmp_path / "missing", tmp_path)


# Task


def test_metrics_are_those_of_the_mean_over_all_bytes(folder: Path, tmp_path: Path) -> None:
    data = loaded(folder / "texts", tmp_path, 32)
    task = language_model(data, ["perplexity", "bits_per_byte", "next_byte_accuracy"])
    _, targets = data.test.take(range(len(data.test)))
    wanted = torch.from_numpy(targets)
    outputs = torch.randn(len(targets), 255, 1, 32, generator=torch.Generator().manual_seed(0))
    means = {name: each.double().mean() for name, each in task.statistics(outputs, wanted).items()}
    found = task.metric_values(means)
    there = wanted != NO_TOKEN
    log_p = outputs[:, :, 0].log_softmax(1)
    chances = log_p.gather(1, wanted.clamp(max=254).long()[:, None])[:, 0][there]
    nats = -chances.double().mean().item()
    assert found["perplexity"].item() == pytest.approx(math.exp(nats), rel=1e-5)
    assert found["bits_per_byte"].item() == pytest.approx(nats / math.log(2), rel=1e-5)
    right = (outputs[:, :, 0].argmax(1) == wanted)[there].double().mean().item()
    assert found["next_byte_accuracy"].item() == pytest.approx(right)
    assert task.loss(outputs, wanted).item() == pytest.approx(nats, rel=1e-5)


# Networks


def test_outputs_do_not_depend_on_later_bytes() -> None:
    space = decoder((1, 16, 1), 255, preset="tiny")
    torch.manual_seed(0)
    network = space.build(space.largest()).eval()
    before = torch.randint(0, 255, (2, 1, 1, 16)).float()
    after = before.clone()
    after[..., 9:] = 3
    first, second = network(before), network(after)
    torch.testing.assert_close(first[..., :9], second[..., :9])
    assert (first[..., 9:] != second[..., 9:]).any()


def test_continued_feeds_the_bytes_that_it_added() -> None:
    """A network that predicts the successor of a byte counts upwards, in any window."""

    def predict(window: Any) -> Any:
        scores = np.zeros((1, 255, 1, window.shape[2]), dtype=np.float32)
        for place, byte in enumerate(window[0, 0, :, 0]):
            scores[0, (int(byte) + 1) % 255, 0, place] = 1
        return scores

    for length in (1, 3, 50):
        assert continued(predict, b"ab", 6, length) == b"cdefgh"
    drawn = {continued(predict, b"a", 3, 4, 1e3, np.random.default_rng(seed)) for seed in range(20)}
    assert len(drawn) > 15
    window, known = window_of(b"abcdef", 4)
    assert (bytes(window.reshape(-1)), known) == (b"cdef", 4)


def test_every_output_has_a_name_of_its_own() -> None:
    assert len(set(BYTE_NAMES)) == len(BYTE_NAMES) == 255
    assert (BYTE_NAMES[ord("a")], BYTE_NAMES[10], BYTE_NAMES[200]) == ("a", "\\x0a", "\\xc8")


# From recipe to bundle


@pytest.mark.slow
def test_search_finds_a_network_that_has_learned_the_text(bundle: Bundle) -> None:
    found = {
        m["name"]: m["value"] for m in bundle.description["metrics"] if m.get("split") == "test"
    }
    assert found["bits_per_byte"] == pytest.approx(math.log2(found["perplexity"]))
    letters = np.frombuffer(SENTENCE.encode(), np.uint8)
    shares = np.unique(letters, return_counts=True)[1] / len(letters)
    unigrams = math.exp(-(shares * np.log(shares)).sum())
    assert found["perplexity"] < unigrams / 3, "more than the frequencies of letters"
    assert all(check.ok for check in bundle.verify())


@pytest.mark.slow
def test_generate_command_continues_the_text(hwnas: Command, bundle: Bundle) -> None:
    prompt = SENTENCE[:20]
    answer = json.loads(hwnas("generate", bundle.folder, prompt, "--bytes", 15, "--json").out)
    assert answer == {"prompt": prompt, "added": SENTENCE[20:35]}
    shown = hwnas("generate", bundle.folder, prompt, "--bytes", 15).out
    assert shown.strip() == SENTENCE[:35].strip()
    drawn = {
        hwnas("generate", bundle.folder, "t", "--temperature", 3, "--seed", seed).out
        for seed in range(3)
    }
    assert len(drawn) == 3
    hwnas("generate", bundle.folder, "").refused("a prompt of 0 characters")
    hwnas("generate", bundle.folder, "t", "--bytes", 0).refused("--bytes")
    hwnas("run", bundle.folder, "a.png").refused("takes no images; use `hwnas generate`")
    with pytest.raises(DataError, match=r"windows of shape \(1, 8\) were given, but .* 32 bytes"):
        bundle.predict(np.zeros((2, 1, 8, 1), np.uint8))
    assert bundle.predict(np.zeros((2, 1, 32, 1), np.uint8)).shape == (2, 255, 1, 32)
    hwnas("serve", bundle.folder).refused("hwnas serve does not answer with yet")
    run = bundle.folder.parents[1]
    hwnas("export", run, "--web", run / "page").refused("gives next_byte_scores")
    source = f"text:{run.parent / 'texts'}"  # windows of the network's length, not of 128 bytes
    shown = hwnas("cache", bundle.folder, "--data", source, "--images", 20, "--json").out
    assert json.loads(shown)
    assert "hwnas generate" in hwnas("resume", run).out


@pytest.mark.slow
def test_code_of_the_model_card_continues_a_text(bundle: Bundle, tmp_path: Path) -> None:
    card = (bundle.folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bundle.folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ("The " + bundle.continued("The ")).strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["objective.0.metric=perplexety"], ["'perplexety'", "perplexity"]),
        (['task.metrics=["nats"]'], ["unknown task.metrics 'nats'"]),
        (["task.name=classification"], ["targets are tokens", "task.name = 'language-model'"]),
        (["data.source=digits"], ["language-model needs text", "classes"]),
        (["data.size=[2,8]"], ["data.size is 2 x 8", "for text give one number"]),
        (["train.flip=true"], ["train.flip is for images, not for text"]),
        (["train.shift_pixels=1"], ["train.shift_pixels is for images"]),
        (["train.crop=0.5"], ["train.crop is for images"]),
        (["train.cutmix=0.5"], ["train.cutmix is for images"]),
        (["train.balanced=true"], ["the targets are tokens"]),
        (["train.label_smoothing=0.1"], ["task language-model has no labels to smooth"]),
        (["run.minutes=10"], ["plans no job for tokens", "train.epochs"]),
        (["space.resolution=[16]"], ["[space] has no key 'resolution'"]),
        (["space.head_width=0", "space.heads=[3]"], ["3 heads do not divide the width 32"]),
        (["space.name=vit", "space.preset=tiny"], ["after each byte of a window", "space decoder"]),
        (["data.source=text:nothing"], ["there is no file or folder"]),
    ],
)
def test_language_model_refuses_settings_that_do_not_fit(
    hwnas: Command, folder: Path, tmp_path: Path, overrides: list[str], parts: list[str]
) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    answer = hwnas("search", folder / "recipe.toml", "--run", tmp_path / "run", *sets)
    answer.refused(*parts)
    assert not (tmp_path / "run").exists()


def test_search_of_text_without_a_recipe_says_what_to_write(
    hwnas: Command, folder: Path, tmp_path: Path
) -> None:
    path = folder / "texts" / "deeper"
    answer = hwnas("search", path, "--minutes", 1, "--run", tmp_path / "run")
    answer.refused(f'data.source = "text:{path}"', 'task.name = "language-model"')


@pytest.mark.slow
def test_decoder_refuses_images(hwnas: Command, folder: Path, tmp_path: Path) -> None:
    sets = ["--set", "data.source=digits", "--set", "task.name=segmentation"]
    sets += ["--set", "task.name=classification", "--set", "objective.0.metric=accuracy"]
    sets += ["--set", "objective.0.direction=maximize", "--set", "data.size=8"]
    answer = hwnas("search", folder / "recipe.toml", "--run", tmp_path / "run", *sets)
    answer.refused("space decoder takes tokens, but the data are images of 8 rows")
