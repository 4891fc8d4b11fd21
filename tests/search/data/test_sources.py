from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.data.sources import read_source

Read = Callable[[str], object]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return lambda source: read_source(source, tmp_path, None, ImageCache(tmp_path, 10**9))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ImageData]:
    """Return a function that loads a set from a module; its ``make`` has the given body."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(body: str) -> ImageData:
        name = f"own_data_{abs(hash(body))}"
        code = """
            import numpy as np
            from hwnas.search.data.image_data import ImageData
            from hwnas.search.data.split import Split
            x = np.zeros((20, 4, 4), np.uint8)
            y = np.arange(20) % 2
            def make():
        """
        lines = dedent(code) + "\n".join(f"    {line}" for line in dedent(body).splitlines())
        (tmp_path / f"{name}.py").write_text(lines)
        return load_data(DataConfig(f"{name}:make"), tmp_path, 0, tmp_path)

    return load


def arrays(x: str = "x", y: str = "y", more: str = "") -> str:
    return f"return dict(x_train={x}, y_train={y}, x_test={x}, y_test={y}{more})"


def test_read_source_lists_the_known_sources_for_an_unknown_one(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"'digts'; did you mean 'digits'.*folder:PATH, npz:FILE"):
        read("digts")


@pytest.mark.parametrize("source", ["npz:", "folder:"])
def test_read_source_requires_a_path(read: Read, source: str) -> None:
    with pytest.raises(ConfigError, match="expected a path after the colon"):
        read(source)


@pytest.mark.parametrize("spelling", ["$NOT_SET_HERE", "${NOT_SET_HERE}"])
def test_read_source_names_a_variable_that_is_not_set(read: Read, spelling: str) -> None:
    with pytest.raises(ConfigError, match=r"\$NOT_SET_HERE is not set; export NOT_SET_HERE="):
        read(f"npz:{spelling}/a.npz")


def test_read_source_names_a_missing_file_with_its_variable(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"no file {tmp_path}/a.npz; is \$HWNAS_DATA right"):
        read("npz:$HWNAS_DATA/a.npz")
    with pytest.raises(DataError, match=rf"no folder {tmp_path}/a; relative paths start at"):
        read("folder:a")


def test_read_source_expands_variables_in_paths(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.zeros((4, 2, 2), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.setenv("HERE", str(tmp_path))
    assert read("npz:${HERE}/set.npz")
    assert read("npz:set.npz")


def test_function_source_gives_classes_with_names(own: Callable[[str], ImageData]) -> None:
    data = own(arrays(more=", class_names=['odd', 'even']"))
    assert data.class_names == ("odd", "even")
    assert own(arrays(y="y.astype(np.float32)", more=", class_names=['a', 'b']")).class_names


@pytest.mark.parametrize("shape", ["y / 7", "np.stack([y, y, y], 1) / 7"])
def test_function_source_gives_values_as_float32_columns(
    own: Callable[[str], ImageData], shape: str
) -> None:
    data = own(arrays(y=shape))
    assert data.class_names is None
    assert data.train.targets.dtype == np.float32
    assert data.train.targets.shape == (18, 3 if "stack" in shape else 1)


def test_function_source_keeps_its_own_splits(
    own: Callable[[str], ImageData], tmp_path: Path
) -> None:
    body = """
        part = [Split(x[..., None], y, np.arange(n)) for n in (8, 4, 2)]
        return ImageData(*part, ("a", "b"))
    """
    data = own(body.strip("\n"))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 4, 2]
    source = next(tmp_path.glob("own_data_*.py")).stem
    with pytest.raises(ConfigError, match=r"data.train_limit does not apply"):
        load_data(DataConfig(f"{source}:make", train_limit=4), tmp_path, 0, tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"failed \(ZeroDivisionError: division by zero\)"),
        ("return x", "gave a ndarray; expected an ImageData or a mapping with x_train"),
        (
            "return {'x_train': x, 'y_train': y}",
            "has no x_test, y_test; .* found x_train, y_tra",
        ),
        (arrays(x="x / 255"), "x_train is float64; expected uint8"),
        (arrays(x="x[0]"), r"x_train has shape \(4, 4\); expected \(N, H, W\)"),
        (arrays(x="x[:0]", y="y[:0]"), "it is empty; at least one image is needed"),
        (arrays(y="y[1:]"), "20 images in x_train but 19 targets in y_train"),
        (arrays(y="y - 1"), r"y_train\[0\] is -1; classes are numbered from 0"),
        (arrays(y="y.astype(str)"), "y_train is <U21; expected integers"),
        (
            arrays(y="np.stack([y, y], 1)", more=", class_names=['a', 'b']"),
            r"y_train has shape \(20, 2\); expected \(N,\)",
        ),
        (arrays(y="y / 2", more=", class_names=['a', 'b']"), r"y_train\[1\] is 0.5; a class is a"),
        (arrays(y="y / np.inf * np.nan"), r"y_train\[0\] is nan; expected finite numbers"),
        (arrays(y="np.zeros((20, 2, 2))"), r"float64 with shape \(20, 2, 2\); masks are"),
        (arrays(more=", class_names='ab'"), r"class_names has shape \(\); expected one name per"),
    ],
)
def test_function_source_names_what_is_wrong_with_its_data(
    own: Callable[[str], ImageData], body: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        own(body)
    assert "\n" not in str(caught.value)


def test_read_source_refuses_objects_that_are_no_function(read: Read) -> None:
    with pytest.raises(ConfigError, match="'math:pi' is a float, not a function"):
        read("math:pi")
    with pytest.raises(ConfigError, match="module 'no_such_module' does not import"):
        read("no_such_module:make")
