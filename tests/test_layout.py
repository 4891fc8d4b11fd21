"""Layers and packages of the tree: imports point down only, and a public name is defined once."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hwnas"

LAYERS = (  # a package may import from lower layers, and from its own without a cycle
    ("cli", "__main__"),
    ("api", "samplers", "spaces", "strategies", "tasks"),
    (
        "experiment",
        "given_objects",
        "planning",
        "progress",
        "recipe",
        "report",
        "run_folder",
        "stages",
    ),
    ("search",),
    ("predictors",),
    ("deploy",),
    ("search_spaces", "kernels"),
    (
        "errors",
        "plugin",
        "registry",
        "atomic",
        "config_class",
        "hashing",
        "home",
        "identity",
        "interval",
    ),
)
PACKAGES = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
KNOWN_CYCLES = {  # a space knows how to make its own supernet
    ("hwnas.search_spaces.space.search_space", "hwnas.search_spaces.supernet.supernet"),
    ("hwnas.search_spaces.space.search_space", "hwnas.search_spaces.supernet.shared_modules"),
}
LINKS = ("search_spaces", "predictors", "search", "deploy", "kernels")
HEAVY = ("torch", "ray", "optuna", "onnxruntime", "triton", "sklearn", "plotly", "pyarrow")
NOT_AT_THE_START = ("ray", "onnxruntime", "sklearn", "pandas")
NOT_AT_THE_START += ("scipy.linalg", "scipy.optimize", "scipy.sparse", "scipy.stats")
SHAPELESS_NAMES = {"utils", "util", "common", "misc", "helpers"}
MAX_DEPTH = 3
MAX_MODULES = 18  # of a package; `kernels.operators` has one for each operator

MODULES = sorted(PACKAGE.rglob("*.py"))
TOP = PACKAGE / "__init__.py"
INITS = [path for path in MODULES if path.name == "__init__.py" and path != TOP]


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


LAZY = """import lazy_loader
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)"""
"""Code of a package that imports its names when they are first used; its stub lists them."""


def is_lazy(path: Path) -> bool:
    return path.with_suffix(".pyi").exists()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the code of a module; of a package that imports its names lazily, their stub."""
    return parsed(path.with_suffix(".pyi") if is_lazy(path) else path)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of all that a module imports, also inside functions and under TYPE_CHECKING."""
    found: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            lazy = is_lazy(path)
            assert node.level == lazy, f"{name_of(path)}: write `from hwnas...`, not `from .`"
            module = f"{dotted(path)}.{node.module}" if lazy else node.module
            found += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(found)


def imported_packages(path: Path) -> set[str]:
    inside = [name.split(".") for name in imports(path)]
    return {parts[1] for parts in inside if parts[0] == "hwnas" and len(parts) > 1} & set(PACKAGES)


def all_of(paths: Iterable[Path], faults: Callable[[Path], Iterator[str]]) -> None:
    """Check a rule for each of many files, and list all that break it."""
    found = [f"{name_of(path)}: {fault}" for path in paths for fault in faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_modules_import_only_from_lower_layers() -> None:
    def faults(path: Path) -> Iterator[str]:
        package = package_of(path)
        if package not in PACKAGES:
            yield f"give {package!r} a layer in {__file__}"
            return
        if upwards := {o for o in imported_packages(path) if PACKAGES[o] < PACKAGES[package]}:
            yield f"imports from a layer above: {sorted(upwards)}"
        if outside := {name.split(".")[0] for name in imports(path)} & {"tests", "experiments"}:
            yield f"imports {sorted(outside)}; the package stands alone"

    # The top of the package may import anything; a test below limits its cost.
    all_of((path for path in MODULES if path != TOP), faults)


def test_packages_import_each_other_without_a_cycle() -> None:
    needs: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for path in MODULES:
        if package_of(path) in PACKAGES:
            needs[package_of(path)] |= imported_packages(path) - {package_of(path)}
    TopologicalSorter(needs).prepare()  # raises with the packages of a cycle


def test_modules_import_each_other_without_a_cycle() -> None:
    """Imports inside functions count, too."""
    modules = {dotted(path): path for path in MODULES if path != TOP}
    needs = {name: set[str]() for name in modules}
    for name, path in modules.items():
        for imported in imports(path):
            found = imported if imported in modules else imported.rpartition(".")[0]
            if found in modules and found != name and (name, found) not in KNOWN_CYCLES:
                needs[name].add(found)
    TopologicalSorter(needs).prepare()  # raises with the modules of a cycle


def test_public_class_names_are_defined_once() -> None:
    defined: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(name_of(path))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice, f"defined more than once; give each its own name: {twice}"


def test_package_exports_do_not_hide_modules() -> None:
    def faults(path: Path) -> Iterator[str]:
        inside = {other.stem for other in path.parent.iterdir()}
        shown = {name.rpartition(".")[2] for name in imports(path)}
        for name in sorted(shown & inside):
            yield f"{name!r} would be what it exports, and the module of this name unreachable"

    # Families and commands: `mobilenet` is a function, and the package that holds it.
    doubled = {"search_spaces", "cli"}
    all_of((path for path in INITS if not doubled & set(path.parts)), faults)


def test_module_paths_are_shallow_and_names_are_specific() -> None:
    def faults(path: Path) -> Iterator[str]:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if len(parts) - 1 > MAX_DEPTH:
            yield f"is deeper than {MAX_DEPTH} packages"
        if SHAPELESS_NAMES & set(parts):
            yield "name the module by what it holds"

    all_of(MODULES, faults)


def test_packages_have_few_enough_modules_to_find_one() -> None:
    def faults(path: Path) -> Iterator[str]:
        modules = [each.stem for each in path.parent.glob("*.py") if each.name != "__init__.py"]
        if len(modules) > MAX_MODULES:
            yield f"has {len(modules)} modules; group those of one subject into a package"

    all_of([TOP, *INITS], faults)


def test_package_inits_have_only_a_docstring_imports_and_a_sorted_all() -> None:
    def faults(path: Path) -> Iterator[str]:
        code = parsed(path)
        if not ast.get_docstring(code):
            yield "has no docstring"
        listed = code.body[1:]
        if is_lazy(path):
            listed = tree_of(path).body  # a stub has no docstring
            if "\n".join(map(ast.unparse, code.body[1:])) != LAZY:
                yield "does more than attach its stub"
        public: list[str] | None = None
        for node in listed:
            match node:
                case ast.Import() | ast.ImportFrom():
                    pass
                case (
                    ast.Assign(targets=[ast.Name("__all__")], value=value)
                    | ast.AnnAssign(target=ast.Name("__all__"), value=ast.expr() as value)
                ):
                    public = ast.literal_eval(value)
                case (
                    ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name))
                ) if name.isupper() or name == "__version__":
                    pass
                case _:
                    yield f"line {node.lineno} does something"
        if public is None:
            yield "has no __all__"
        elif public != sorted(public, key=isort_style):
            yield "__all__ is not sorted"

    all_of(INITS, faults)


def isort_style(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order of ruff's RUF022."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", LINKS)
def test_repository_root_links_to_the_packages(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute(), "an absolute link breaks in every other clone"
    assert link.resolve() == PACKAGE / name
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("hwnas", HEAVY),
        ("hwnas.deploy.measurement.memory", ("torch", "onnxruntime")),
        ("hwnas.deploy.agent.server.worker", ("torch", "onnxruntime")),
        ("hwnas.experiment", NOT_AT_THE_START),
    ],
)
def test_import_loads_no_heavy_package_before_it_is_needed(
    module: str, unneeded: tuple[str, ...]
) -> None:
    """`hwnas --help` and processes that measure start fast then, even if one of these is broken."""
    code = f"import sys, {module}; print(*sorted(set({unneeded}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


REGISTRIES = [each for each in PACKAGE.rglob("registry.py") if each.parent != PACKAGE]


def test_functions_and_classes_that_other_modules_import_are_in_all() -> None:
    offered: dict[str, set[str]] = {}
    defined: dict[str, set[str]] = {}
    for path in MODULES:
        name = dotted(path)
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.setdefault(name, set()).add(node.name)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                assert isinstance(node.value, ast.List), f"{name}: `__all__` is not a list"
                offered[name] = set(ast.literal_eval(node.value))

    def faults(path: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module in offered:
                names = {each.name for each in node.names} & defined.get(node.module, set())
                for each in names - offered[node.module]:
                    yield f"{each} is not in the `__all__` of {node.module}"

    all_of(MODULES, faults)


@pytest.mark.parametrize("path", REGISTRIES, ids=lambda path: path.parent.name)
def test_registry_names_a_module_to_copy(path: Path) -> None:
    """One opens the registry first to add a part; it says where the part goes instead."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    example = re.search(r"``PLUGINS``,\s+as\s+in\s+`([\w.]+)`", text)
    assert example is not None
    module = path.parent / (example[1].replace(".", "/") + ".py")
    assert "\nPLUGINS" in module.read_text()
