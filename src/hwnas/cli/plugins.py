"""Command that lists the plug-ins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hwnas.cli.app import MORE, Json, app, out, print_json

if TYPE_CHECKING:
    from hwnas.registry import Registry

__all__ = ["PluginEntry", "plugins"]


@dataclass(frozen=True)
class PluginEntry:
    """Plug-in in a listing.

    Attributes:
        kind: Kind, such as ``"sampler"``.
        name: Name in recipes and on the command line.
        summary: Description in one line.
        extra: Dependency group of hwnas to install; empty for none.
        group: Group of entry points in which an installed package offers this kind.
    """

    kind: str
    name: str
    summary: str
    extra: str
    group: str


def _registries() -> list[Registry[Any]]:
    """Return all registries; that of kernel operators only if Triton is installed."""
    from hwnas.deploy.file_formats.registry import FILE_FORMATS
    from hwnas.deploy.runtimes import RUNTIMES
    from hwnas.deploy.variants import VARIANTS
    from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
    from hwnas.search import EVALUATORS, SAMPLERS, TASKS
    from hwnas.search.data.sources import SOURCES
    from hwnas.search.strategies import STRATEGIES
    from hwnas.search.training.sampling import SAMPLING
    from hwnas.search_spaces import ROLES, SPACES
    from hwnas.search_spaces.any_model.sources import MODEL_SOURCES

    found: list[Registry[Any]] = [
        SOURCES,
        TASKS,
        SPACES,
        ROLES,
        MODEL_SOURCES,
        SAMPLING,
        STRATEGIES,
        EVALUATORS,
        SAMPLERS,
        DEVICE_METRICS,
        RUNTIMES,
        VARIANTS,
        FILE_FORMATS,
    ]
    if find_spec("triton") is not None:
        from hwnas.kernels.operators.registry import OPERATORS

        found.append(OPERATORS)
    return found


def plugins() -> list[PluginEntry]:
    """Return all plug-ins, shipped and installed, by kind."""
    return [
        PluginEntry(each.kind, name, each.summary, each.extra, registry.group)
        for registry in _registries()
        for name in registry
        for each in [registry.plugin(name)]
    ]


@app.command("plugins", rich_help_panel=MORE)
def command(as_json: Json = False) -> None:
    """List all plug-ins by kind: data sources, tasks, spaces, samplers, runtimes and so on."""
    from hwnas.cli.terminal import table_of

    found = plugins()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        [
            "" if before is not None and before.kind == each.kind else each.kind,
            each.name,
            each.summary + (f" (needs the extra {each.extra})" if each.extra else ""),
        ]
        for before, each in zip([None, *found], found, strict=False)
    ]
    out.print(table_of(["kind", "name", "description"], rows, "Plug-ins", 3))
    out.print(
        'your own: "package.module:object" in a recipe, or an entry point, e.g. in the group '
        f"{found[0].group}",
        markup=False,
        style="dim",
        soft_wrap=True,
    )
