"""Hook of MkDocs that makes the site from the pages of the whole repository.

Pages keep their places in the repository, so that links between them work in both. Added are the
notebooks as pages, files that pages link to, and the reference of the Python interface.
"""

import inspect
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

from griffe import Docstring, DocstringNamedElement
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import hwnas

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = ("*.md", "docs/**/*.md", "experiments/**/*.md")
_GROUPS = {
    "Jobs": (
        "search",
        "search_recipe",
        "open",
        "predict",
        "predict_gemm",
        "measure",
        "measure_sustained",
        "measure_cold_start",
        "measure_energy",
        "measure_peak_memory",
        "explain",
        "calibrate",
        "calibrate_from_table",
        "export_networks",
        "targets",
        "known_devices",
        "compress",
        "sweep",
        "evaluate",
        "check",
        "finetune_plan",
        "finetune",
        "convert",
        "web_page",
        "model_repository",
        "plan_serving",
    ),
    "Runs": ("Run", "Front", "Network", "Bundle", "export", "compare"),
    "Objectives": ("maximize", "minimize"),
    "Errors": ("errors",),
}
"""Public names under the headings of the reference; all others are under the last one."""
_OPTIONS = ("spaces", "samplers", "strategies", "tasks")
"""Public modules, whose functions mkdocstrings does not find, since other functions make them."""
_LINK = re.compile(r"\]\(([^)\s#:]+)[^)\s]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of the documentation folder by those of the repository."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = {path for pattern in _PAGES for path in _ROOT.glob(pattern)}
    notebooks = sorted(_ROOT.glob("examples/*.ipynb"))
    for path in sorted({*pages, *_linked(pages), *notebooks}):
        files.append(
            File.generated(config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path))
        )
    for path in notebooks:
        page = path.relative_to(_ROOT).with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=_notebook(path)))
    files.append(File.generated(config, "docs/reference.md", content=_reference()))
    return files


def _linked(pages: set[Path]) -> Iterator[Path]:
    """Return the files that are no pages, and that pages link to."""
    for page in pages:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / link).resolve()
            if path.is_file() and path.is_relative_to(_ROOT) and path.suffix != ".md":
                yield path


def _notebook(path: Path) -> str:
    """Return a notebook as Markdown, without outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ((cell["cell_type"], "".join(cell["source"])) for cell in cells)
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    note = f"This page is the notebook [`{path.relative_to(_ROOT).as_posix()}`]({path.name})."
    return "\n\n".join([parts[0], note, *parts[1:]])


def _reference() -> str:
    """Return the page of the Python interface, with every public name."""
    named = {*_OPTIONS, *(name for names in _GROUPS.values() for name in names)}
    others = [name for name in hwnas.__all__ if name not in named and not name.startswith("_")]
    groups = {**_GROUPS, "Settings and other types": tuple(others)}
    parts = ["# Python interface", "Everything here is a name of `import hwnas`."]
    for heading, names in groups.items():
        parts += [f"## {heading}", *(f"::: {_defined(name)}" for name in names)]
    for module in map(partial(getattr, hwnas), _OPTIONS):
        parts += [f"## {module.__name__}", inspect.getdoc(module) or ""]
        parts += [_option(module, name) for name in module.__all__]
    return "\n\n".join(parts)


def _defined(name: str) -> str:
    """Return the name of the module that defines a public name, with the name."""
    found = inspect.unwrap(getattr(hwnas, name))
    module = getattr(found, "__module__", None)
    return f"hwnas.{name}" if module is None else f"{module}.{found.__name__}"


def _option(module: ModuleType, name: str) -> str:
    """Return the description of a function or class that gives a plug-in its options."""
    found = getattr(module, name)
    short = module.__name__.removeprefix("hwnas.")
    signature = re.sub(r"hwnas\.recipe\.(\w+\.)?", "", f"{short}.{name}{inspect.signature(found)}")
    parts = [f"### {short}.{name}", f"```python\n{signature}\n```"]
    for section in Docstring(inspect.getdoc(found) or "").parse("google", warnings=False):
        if isinstance(section.value, str):
            parts.append(section.value)
        elif section.kind.value in ("parameters", "attributes"):
            parts.append("\n".join(f"- `{each.name}`: {_one_line(each)}" for each in section.value))
    return "\n\n".join(parts)


def _one_line(described: DocstringNamedElement) -> str:
    return " ".join(described.description.split())
