"""Resolution of names and options in a recipe."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.plugin import build, closest, resolve

KNOWN = {"mobilenet": 1, "resnet": 2}


@dataclasses.dataclass(frozen=True)
class Layer:
    channels: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.stride not in (1, 2):
            raise ConfigError(f"stride is {self.stride}; expected 1 or 2")


class Network:
    def __init__(self, outputs: int, layers: tuple[Layer, ...] = (), name: str = "x") -> None:
        self.outputs, self.layers, self.name = outputs, layers, name


def network(outputs: int, layers: tuple[Layer, ...] = (), name: str = "x") -> Network:
    return Network(outputs, layers, name)


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "users_own.py").write_text("class Inner:\n    value = 7\nspace = 'mine'\n")
    (tmp_path / "users_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "users_own"
    for name in ("users_own", "users_broken"):
        sys.modules.pop(name, None)


def test_resolve_finds_a_built_in_by_its_short_name() -> None:
    assert resolve("space", "mobilenet", KNOWN) == 1


def test_resolve_imports_an_object_of_a_user_module(users_module: str) -> None:
    assert resolve("space", f"{users_module}:space", {"other": "text"}) == "mine"
    assert resolve("space", f"{users_module}:Inner.value", KNOWN) == 7


def test_resolve_suggests_the_closest_and_lists_all_names() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("space", "mobilnet", KNOWN)
    message = str(caught.value)
    assert "unknown space 'mobilnet'" in message
    assert "did you mean 'mobilenet'?" in message
    assert "known: mobilenet, resnet" in message
    assert '"package.module:object"' in message


def test_closest_suggests_nothing_if_no_name_is_similar() -> None:
    assert closest("zzz", KNOWN) == "known: mobilenet, resnet"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "'no_such_module' does not import"),
        ("users_broken:x", "ZeroDivisionError: division by zero"),
        ("users_own:spce", "has no 'spce'; did you mean 'space'"),
        ("users_own:", "has no ''"),
        (":space", "does not import"),
    ],
)
@pytest.mark.usefixtures("users_module")
def test_resolve_gives_the_reason_if_a_user_object_fails(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("task", name, KNOWN)
    assert str(caught.value).startswith(f"task {name!r}")


factories = pytest.mark.parametrize("factory", [Network, network], ids=["class", "function"])


@factories
def test_build_converts_options_to_annotated_types(factory: Any) -> None:
    options = {"layers": [{"channels": 8}, {"channels": 16, "stride": 2}]}
    built = build("space", factory, options, outputs=10, unasked_for=1)
    assert isinstance(built, Network)
    assert built.outputs == 10
    assert built.layers == (Layer(8), Layer(16, 2))


@factories
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nam": "y"}, r"^\[space\] has no key 'nam'; did you mean 'name'\? known: layers, name$"),
        ({"outputs": 3}, r"^\[space\] has no key 'outputs'"),
        ({"name": 3}, r"^\[space\] name is 3; expected text in quotes$"),
        ({"layers": "2of4"}, r"^\[space\] layers is '2of4'; expected a list$"),
        ({"layers": [{}]}, r"^\[space\] layers\.0\.channels is missing; it has no default$"),
        ({"layers": [{"channels": 8, "strid": 2}]}, r"^\[space\] has no key 'layers\.0\.strid'$"),
        (
            {"layers": [{"channels": 8, "stride": 3}]},
            r"^\[space\] layers\.0: stride is 3; expected 1 or 2$",
        ),
    ],
)
def test_build_refuses_wrong_options_in_one_line(
    factory: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build("space", factory, options, outputs=10)


@factories
def test_build_names_a_missing_option(factory: Any) -> None:
    with pytest.raises(ConfigError, match=r"^\[task\] outputs is missing; it has no default$"):
        build("task", factory, {})


def test_build_passes_any_options_to_a_factory_with_kwargs() -> None:
    def open_ended(**options: Any) -> dict[str, Any]:
        return options

    assert build("task", open_ended, {"anything": 1}, given=2) == {"anything": 1, "given": 2}


def test_build_passes_on_errors_of_the_factory() -> None:
    def picky(size: int) -> None:
        raise ConfigError(f"size is {size}; expected a prime")

    with pytest.raises(ConfigError, match=r"^size is 4; expected a prime$"):
        build("task", picky, {"size": 4})
