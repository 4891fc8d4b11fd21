"""The tree is the architecture: rooms, floors, and imports that point down only."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwnas

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hwnas"

FLOORS = (  # a room may import from lower floors, and from its own as long as there is no circle
    ("cli", "__main__"),
    (
        "experiment",
        "planning",
        "progress",
        "recipe",
        "recipe_keys",
        "report",
        "run_folder",
        "stages",
        "terminal",
    ),
    ("search",),
    ("predictors",),
    ("deploy",),
    ("search_spaces", "kernels"),
    ("errors", "plugin", "atomic", "content", "home", "identity", "interval"),
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
LINKS = ("search_spaces", "predictors", "search", "deploy", "kernels")
HEAVY = ("torch", "ray", "optuna", "onnxruntime", "triton", "sklearn", "plotly", "pyarrow")
SHAPELESS_NAMES = {"utils", "util", "common", "misc", "helpers"}
MAX_DEPTH = 3

MODULES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = [path for path in MODULES if path.name == "__init__.py"]


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of all that a module imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: write `from hwnas... import`, not `from .`"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    inside = [name.split(".") for name in imports(path)]
    return {parts[1] for parts in inside if parts[0] == "hwnas" and len(parts) > 1} & set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_has_a_room_and_imports_only_downwards(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return  # the face of the package may show anything; its cost is tested below
    assert room in ROOMS, f"{name_of(path)} is on no floor; give {room!r} one in {__file__}"
    upwards = {other for other in imported_rooms(path) if ROOMS[other] < ROOMS[room]}
    assert not upwards, f"{name_of(path)} imports from a floor above: {sorted(upwards)}"
    outside = {name.split(".")[0] for name in imports(path)} & {"tests", "experiments"}
    assert not outside, f"{name_of(path)} imports {sorted(outside)}; the package stands alone"


def test_rooms_of_one_floor_import_each_other_in_no_circle() -> None:
    needs: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in MODULES:
        if room_of(path) in ROOMS:
            needs[room_of(path)] |= imported_rooms(path) - {room_of(path)}
    while free := [room for room, others in needs.items() if not others]:
        needs = {room: others - set(free) for room, others in needs.items() if room not in free}
    assert not needs, f"these rooms need each other: {sorted(needs)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_folders_are_few_and_names_say_what_is_inside(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    assert len(parts) - 1 <= MAX_DEPTH
    assert not SHAPELESS_NAMES & set(parts), f"{name_of(path)}: name the module by what it holds"


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_a_package_is_a_docstring_imports_and_a_sorted_all(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    public: list[str] | None = None
    for node in tree.body[1:]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        assert isinstance(node, ast.Assign | ast.AnnAssign), f"line {node.lineno} does something"
        (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
        assert isinstance(target, ast.Name)
        if target.id == "__all__":
            assert node.value is not None
            public = ast.literal_eval(node.value)
        else:
            assert target.id.isupper() or target.id == "__version__"
    assert public is not None, "there is no __all__"
    assert public == sorted(public, key=isort_style)


def isort_style(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order of ruff's RUF022."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", LINKS)
def test_the_root_shows_the_rooms(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute(), "an absolute link breaks in every other clone"
    assert link.resolve() == PACKAGE / name
    assert (link / "__init__.py").is_file()


def test_import_hwnas_is_cheap() -> None:
    """So that `hwnas --help` answers at once, and the package imports where these are broken."""
    code = f"import sys, hwnas; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_public_face() -> None:
    assert hwnas.__all__ == ["__version__"]
