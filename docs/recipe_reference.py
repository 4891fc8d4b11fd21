"""Page of all keys of a recipe, made from the classes and functions that define them.

``python docs/recipe_reference.py`` writes the page.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from griffe import Docstring

from hwnas.hashing import default_of
from hwnas.recipe import (
    ComputeConfig,
    DeployConfig,
    PredictorConfig,
    Recipe,
    RunConfig,
    SearchConfig,
)
from hwnas.search import SAMPLERS, TASKS, DataConfig, Objective, TrainConfig
from hwnas.search.engine.rungs import Rungs
from hwnas.search.strategies import STRATEGIES
from hwnas.search_spaces.dense_head import DenseHead
from hwnas.search_spaces.hybrid.config import HybridStage
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.registry import ROLES, SPACES
from hwnas.search_spaces.resnet.config import ResNetStage
from hwnas.search_spaces.simplenet.config import Group

PAGE = Path(__file__).parent / "guides" / "recipe.md"
_TABLES: Mapping[str, tuple[type, str]] = {
    "[data]": (DataConfig, "[Your own data](data.md)"),
    "[[objective]]": (Objective, "[Objectives and limits](objectives.md)"),
    "[train]": (TrainConfig, "[Training](training.md)"),
    "[search]": (SearchConfig, "[Samplers and evaluators](search.md)"),
    "[search.fidelity]": (Rungs, "[Cheaper first](cluster.md#cheaper-first)"),
    "[predictor]": (PredictorConfig, "[Costs on a device](devices.md)"),
    "[deploy]": (DeployConfig, "[Fine-tuning](training.md#fine-tuning-the-finalists)"),
    "[run]": (RunConfig, "[A search for a time budget](budget.md)"),
    "[compute]": (ComputeConfig, "[Many machines](cluster.md)"),
}
"""Class and guide of each table."""
_WITHIN: Mapping[str, type] = {
    "`[[space.stages]]` of `mobilenet`": Stage,
    "`[[space.stages]]` of `resnet`": ResNetStage,
    "`[[space.stages]]` of `hybrid`": HybridStage,
    "`[[space.groups]]` of `simplenet`": Group,
    "`[space.dense_head]` of several spaces": DenseHead,
}
"""Classes of tables within that of a space."""
_GIVEN = (
    *("image_shape", "outputs", "maps", "upscale", "tasks"),
    *("folder", "data", "seed", "trials", "batch"),
)
_GIVEN += ("features", "task")
"""Parameters of plug-ins that a run sets itself."""
_PLUGINS: Mapping[str, tuple[Mapping[str, Callable[..., Any]], str, str]] = {
    "Spaces": (SPACES, "[space]", "[Your own search space](space.md)"),
    "Roles beside the networks": (
        ROLES,
        "[space.ROLE]",
        "[Architecture and training settings]"
        "(search.md#architecture-and-training-settings-together)",
    ),
    "Tasks": (TASKS, "[task]", "[Tasks](tasks.md)"),
    "Samplers": (SAMPLERS, "[search.options]", "[Samplers](search.md)"),
    "Strategies": (
        STRATEGIES,
        "[search.strategy_options]",
        "[Strategies](search.md#learn-which-networks-to-propose)",
    ),
}
"""Registry, table of the options, and guide of each kind of plug-in."""
_HEAD = """# All keys of a recipe

A recipe is the TOML file of a run ([an example](budget.md#the-recipe)). `hwnas init` writes one,
and `hwnas search recipe.toml` runs it. `--set table.key=value` replaces a key. In a job with
`[run] minutes`, keys that the recipe does not have are planned; the defaults below hold in other
runs. *None* stands for a key that is left out. Python has the same tables as [objects](python.md).
"""


def reference() -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD, "## Top level\n", _table(Recipe, ("name", "seed"))]
    for table, (config, guide) in _TABLES.items():
        nested = [f.name for f in fields(config) if is_dataclass(default_of(f))]
        names = [f.name for f in fields(config) if f.name not in nested]
        parts += [f"## `{table}`\n", f"{_first(config)} Guide: {guide}.\n", _table(config, names)]
    for heading, (registry, table, guide) in _PLUGINS.items():
        parts += [f"## {heading}\n", f"Keys of `{table}`, by the name. Guide: {guide}.\n"]
        for name in sorted(registry):
            parts += [f"### `{name}`\n", *_plugin(registry[name])]
        for heading, config in _WITHIN.items() if registry is SPACES else ():
            parts += [f"### {heading}\n", _table(config, [f.name for f in fields(config)])]
    return "\n".join(parts)


def _plugin(factory: Callable[..., Any]) -> Iterator[str]:
    rows = list(_rows(factory, _options(factory)))
    yield _lines(rows) if rows else "It has no options.\n"


def _options(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the defaults of the options of a plug-in."""
    parameters = inspect.signature(factory).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        each.name: each.default
        for each in parameters
        if each.name not in _GIVEN and each.kind not in variable
    }


def _first(documented: type) -> str:
    first = (inspect.getdoc(documented) or "").split("\n\n")[0]
    return _sentence(re.sub(r"^Table `\S+`: ", "", _plain(first)))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(config: type, names: Collection[str]) -> str:
    defaults = {f.name: default_of(f) for f in fields(config) if f.name in names}
    return _lines(list(_rows(config, defaults)))


def _rows(documented: Any, defaults: Mapping[str, Any]) -> Iterator[str]:
    described: dict[str, str] = {}
    for each in reversed(getattr(documented, "__mro__", (documented,))):
        for section in Docstring(inspect.getdoc(each) or "").parse("google", warnings=False):
            if section.kind.value in ("parameters", "attributes"):
                described |= {found.name: found.description for found in section.value}
    for name, default in defaults.items():
        if name not in described:
            raise ValueError(f"{documented} does not describe {name}")
        yield f"| `{name}` | {_shown(default)} | {_plain(described[name])} |"


def _lines(rows: list[str]) -> str:
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows, ""])


def _shown(default: Any) -> str:
    if default in (MISSING, inspect.Parameter.empty):
        return "required"
    if default is None:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, Mapping):
        return "`{}`" if not default else f"`{dict(default)}`"
    if isinstance(default, tuple | list):
        if any(is_dataclass(each) for each in default):
            return "as the preset"
        return f"`{list(default)}`".replace("'", '"')
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _plain(text: str) -> str:
    """Return a description on one line, with literals as in Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split())).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
