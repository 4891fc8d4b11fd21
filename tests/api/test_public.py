"""The names that ``import hwnas`` offers."""

import ast
import inspect
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hwnas
from hwnas.api.searching import search

TOP = Path(hwnas.__file__)


@pytest.mark.parametrize("name", hwnas.__all__)
def test_public_name_is_the_one_that_editors_see(name: str) -> None:
    """The block under TYPE_CHECKING and the lazy import must agree."""
    if name == "__version__":
        return
    block = next(node for node in ast.parse(TOP.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = getattr(hwnas, name)
    if inspect.ismodule(found) and name != "search":
        assert seen[name] == found.__name__
        return
    module, _, attribute = seen[name].rpartition(".")
    expected = getattr(sys.modules[module], attribute)
    assert (search if name == "search" else found) is expected


def test_public_names_are_listed_and_documented() -> None:
    assert set(hwnas.__all__) <= set(dir(hwnas))
    missing = [name for name in hwnas.__all__ if not inspect.getdoc(getattr(hwnas, name))]
    assert missing == ["__version__"] or not missing


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hwnas' has no attribute 'serach'"):
        hwnas.serach  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("first", ["hwnas.search.engine.loop", "hwnas"])
def test_search_is_the_function_and_the_package(first: str) -> None:
    """Also if something else has imported the package before."""
    code = (
        f"import {first}, hwnas, inspect; from hwnas.search import SAMPLERS; "
        "import hwnas.search as package; assert package.SAMPLERS is SAMPLERS; "
        "assert hwnas.search.SAMPLERS is SAMPLERS; "
        "print(list(inspect.signature(hwnas.search).parameters)[0])\n"
        "try: hwnas.search('digits')\n"
        "except hwnas.HwnasError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, error = done.stdout.splitlines()
    assert name == "data"
    assert "neither minutes" in error


def test_import_takes_a_tenth_of_a_second() -> None:
    """The least of several, since other processes take time, too; less that of Python itself."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    assert min(seconds("import hwnas") for _ in range(5)) < 0.1 + min(
        seconds("pass") for _ in range(5)
    )
