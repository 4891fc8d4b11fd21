"""Packing of the agent into one Python file, for machines where hwnas is not installed.

The file holds the modules that the agent imports, found by following imports, and nothing else. A
package that only contains such a module is packed with an empty ``__init__.py``, because its own
would import all of hwnas. The kernels are left out, because they would double the size of the file,
and hwnas can be installed on machines that have a GPU and Triton; so is the emulation of
microcontrollers, which reads files that are no modules.
"""

from __future__ import annotations

import ast
import tempfile
import zipapp
from collections.abc import Iterator
from pathlib import Path

import hwnas
from hwnas.atomic import replacing
from hwnas.errors import ConfigError

__all__ = ["LEFT_OUT", "ROOT", "ROOTS", "packed_code", "packed_modules", "write_pack"]

ROOT = Path(hwnas.__file__).parents[1]
"""Location that hwnas is imported from: a folder, or the packed file."""
ROOTS = ("hwnas", "hwnas.deploy.agent.command", "hwnas.deploy.agent.server.worker")
LEFT_OUT = ("hwnas.deploy.matching", "hwnas.deploy.microcontroller", "hwnas.kernels")
"""Packages that the packed agent does not include."""
_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: this is Python {sys.version.split()[0]}; the agent needs 3.11 or newer")

from hwnas.deploy.agent.command import main

main()
"""


def write_pack(path: Path) -> Path:
    """Write the agent as a file that is started by ``python FILE serve``.

    Args:
        path: Path of the file; an existing file is replaced.

    Returns:
        ``path``.

    Raises:
        ConfigError: This process runs from a packed file already, or ``path`` is a folder.
        StorageError: The file cannot be written.
    """
    if ROOT.is_file():
        raise ConfigError(f"this is the packed agent {ROOT} already; copy that file")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the path of a file, e.g. {path / 'agent.pyz'}")
    with replacing(path) as temporary, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        modules = packed_modules()
        for module, is_whole in modules.items():
            source = _source(module)
            to = folder / source.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(source.read_text(encoding="utf-8") if is_whole else "", encoding="utf-8")
        (folder / "__main__.py").write_text(_MAIN, encoding="utf-8")
        zipapp.create_archive(folder, temporary, "/usr/bin/env python3", compressed=True)
    return path


def packed_code(folder: Path) -> Path:
    """Return the packed agent, which is written into a folder unless this process runs from one."""
    return ROOT if ROOT.is_file() else write_pack(folder / "agent.pyz")


def packed_modules() -> dict[str, bool]:
    """Return the names of modules that the agent can import, and whether each is packed whole."""
    found: dict[str, bool] = {}
    waiting = [*ROOTS, *_runtimes()]
    while waiting:
        module = waiting.pop()
        if found.get(module):
            continue
        found[module] = True
        for parent in _parents(module):
            found.setdefault(parent, False)
        waiting += _imports(_source(module))
    return dict(sorted(found.items()))


def _runtimes() -> Iterator[str]:
    """Yield the modules of the runtimes, which a registry finds without importing them by name."""
    package = "hwnas.deploy.runtimes"
    yield from (f"{package}.{path.stem}" for path in _source(package).parent.glob("[a-z]*.py"))


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _imports(source: Path) -> Iterator[str]:
    """Yield the modules of hwnas that a file imports, including those imported in functions."""
    for node in _executed(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "hwnas" and _is_wanted(name))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes within a node, except those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _executed(child)


def _is_wanted(module: str) -> bool:
    return not any(f"{module}.".startswith(f"{package}.") for package in LEFT_OUT)


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
