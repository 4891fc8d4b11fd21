"""Does a search find better small language models than scaled ones, trained for equal time?

The text is the documentation that ships with Python and installed packages: licences, READMEs and
docstrings. A job searches the space of decoders. Decoders of four sizes, whose depth and width are
scaled together, are trained alone for the time of the job. All are timed together. A compressor and
a model of the frequencies of byte sequences give the perplexity that needs no network.
"""

from __future__ import annotations

import argparse
import ast
import lzma
import math
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from experiments.alone import Alone, train_alone
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network, of_job
from hwnas.atomic import write_text
from hwnas.deploy import Target, measure
from hwnas.search_spaces import DecoderSpace
from hwnas.search_spaces.decoder.config import DecoderConfig
from hwnas.stages.run_inputs import RunInputs

OURS, ALONE = "hwnas", "alone"
SCALED = {"d2w64": (2, 64, 2), "d3w96": (3, 96, 2), "d4w128": (4, 128, 4), "d6w192": (6, 192, 4)}
"""Depth, width and heads of the decoders that are trained alone."""
TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
_ORDER = 5  # bytes of context of the model of frequencies
_DISCOUNT = 0.75
_LEAST_BYTES = 400  # of a docstring, so that most windows are full
_MOST_BYTES = 2**23


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=15.0, metavar="M", help="of each network")


def work(arguments: argparse.Namespace) -> None:
    minutes = arguments.minutes
    texts = collected(arguments.work.absolute() / "texts")
    setting = Setting(arguments, {"minutes": minutes, "scaled": SCALED, "order": _ORDER})
    for seed in setting.seeds:
        if setting.answers.find("perplexity", f"test {ALONE}-d2w64", seed) is None:
            experiment = setting.experiment(seed, [f"data.source=text:{texts}"])
            folder = setting.work / f"seed-{seed}"
            networks, run_inputs, seconds = of_job(OURS, experiment, folder / OURS)
            print(f"seed {seed}: the job took {seconds / 60:.1f} minutes", flush=True)
            networks += alone(run_inputs, minutes, folder / ALONE)
            measured = measure({each.subject: each.onnx for each in networks}, TARGET)
            latency = {name: each.latency_ms for name, each in measured.items()}
            rows = observations(networks, latency, seed)
            setting.observations.put([*rows, Row("seconds", f"job {OURS}", seed, seconds, "s", 1)])
            setting.answer([*answers(networks, latency, seed), *without_networks(run_inputs, seed)])
    print(crosstab(setting.answers.rows))


def collected(folder: Path) -> Path:
    """Write the documentation of installed packages as text files, and return the folder."""
    if folder.exists():
        return folder
    made, written = folder.with_name(f"{folder.name}-new"), 0
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for number, text in enumerate(documentation()):
        write_text(made / f"{number:05}.txt", text)
        written += len(text.encode())
        if written > _MOST_BYTES:
            break
    return made.rename(folder)


def documentation() -> Iterator[str]:
    """Yield the texts of licences and READMEs, and the docstrings of each module."""
    roots = [Path(sysconfig.get_paths()[name]) for name in ("purelib", "stdlib")]
    for root in roots:
        for path in sorted(root.rglob("*")):
            if "site-packages" in path.relative_to(root).parts:
                continue
            if path.suffix in (".md", ".rst", ".txt") or path.name.startswith("LICENSE"):
                if path.is_file() and (text := _text_of(path)):
                    yield text
            elif path.suffix == ".py" and (text := _docstrings(path)):
                yield text


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if len(text) >= _LEAST_BYTES else ""


def _docstrings(path: Path) -> str:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    text = "\n\n".join(each for each in found if each)
    encodable = text.encode("utf-8", errors="ignore").decode()
    return encodable if len(encodable) >= _LEAST_BYTES else ""


def alone(run_inputs: RunInputs, minutes: float, folder: Path) -> list[Network]:
    """Return the scaled decoders, each trained alone."""
    training = replace(run_inputs.recipe.train, epochs=None, budget_minutes=minutes)
    wanted = []
    for name, (depth, width, heads) in SCALED.items():
        config = DecoderConfig(
            (depth,), (width,), (heads,), (4,), resolution=(run_inputs.data.image_shape[1],)
        )
        space = DecoderSpace(config)
        shape = space.input_shape(space.largest())
        about = {"depth": depth, "width": width, "heads": heads}
        wanted.append(Alone(name, partial(_built, space), shape, about))
    with cores(run_inputs.recipe) as at_once:
        networks, _ = train_alone(ALONE, wanted, run_inputs, [training], folder, at_once)
    return networks


def _built(space: DecoderSpace) -> nn.Module:
    return space.build(space.largest())


def observations(networks: Sequence[Network], latency: Mapping[str, float], seed: int) -> list[Row]:
    """Return the test perplexity of each network, with all that is known of it."""
    return [
        Row("test_perplexity", each.subject, seed, each.test, "ratio", 1, {},
            {"validation_perplexity": each.validation, "latency_ms": latency[each.subject],
             "macs": each.macs, "params": each.params, "architecture": each.architecture})
        for each in networks
    ]  # fmt: skip


def answers(networks: Sequence[Network], latency: Mapping[str, float], seed: int) -> list[Row]:
    """Return test perplexity and latency of all, and the ratio of ours to that of each rival.

    The ratio is that of our best network, by validation, among those as fast as the rival.
    """
    found = []
    for each in networks:
        name = f"{each.side}-{each.id}"
        found += [
            Row("perplexity", f"test {name}", seed, each.test, "ratio", 1),
            Row("latency", f"{TARGET.name} {name}", seed, latency[each.subject], "ms", 1),
        ]
    ours = [each for each in networks if each.side == OURS]
    for rival in (each for each in networks if each.side == ALONE):
        fast = [each for each in ours if latency[each.subject] <= latency[rival.subject]]
        best = min(fast, key=lambda each: each.validation, default=None)
        value = None if best is None else best.test / rival.test
        found.append(
            Row("perplexity_ratio", f"as-fast {ALONE}-{rival.id}", seed, value, "ratio", 1)
        )
    return found


def without_networks(run_inputs: RunInputs, seed: int) -> list[Row]:
    """Return the perplexity of a compressor and of a model of byte frequencies on the test text."""
    train, test = (text_of(split) for split in (run_inputs.data.train, run_inputs.data.test))
    whole, before = (len(lzma.compress(text, preset=9)) for text in (train + test, train))
    compressed = 2 ** (8 * (whole - before) / len(test))
    sequences = frequencies_perplexity(train, test)
    return [
        Row("perplexity", "test lzma", seed, compressed, "ratio", len(test)),
        Row("perplexity", f"test {_ORDER}-bytes", seed, sequences, "ratio", len(test)),
    ]


def text_of(split: object) -> bytes:
    """Return the text of a split, window after window."""
    images, _ = split.take(range(len(split)))  # type: ignore[attr-defined]
    return images.reshape(-1).tobytes().replace(b"\0", b"")


def frequencies_perplexity(train: bytes, test: bytes) -> float:
    """Return the perplexity of interpolated absolute discounting (Ney et al., CSL 1994)."""
    counts: list[Counter[bytes]] = []
    for length in range(1, _ORDER + 2):
        counts.append(Counter(train[i : i + length] for i in range(len(train) - length + 1)))
    after: list[Counter[bytes]] = [Counter(key[:-1] for key in each) for each in counts]
    nats = 0.0
    for i in range(_ORDER, len(test)):
        chance = 1 / 255
        for length in range(_ORDER + 1):
            context = test[i - length : i]
            total = counts[length - 1][context] if length else len(train)
            if not total:
                break
            seen = max(counts[length][context + test[i : i + 1]] - _DISCOUNT, 0) / total
            chance = seen + _DISCOUNT * after[length][context] / total * chance
        nats -= math.log(max(chance, 1e-12))
    return math.exp(nats / (len(test) - _ORDER))


if __name__ == "__main__":
    main(
        Path(__file__).parent,
        __doc__,
        work,
        options,
        recipe=Path(__file__).with_name("recipe.toml"),
    )
