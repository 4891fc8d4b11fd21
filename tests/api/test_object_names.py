"""Names by which another process can import an object."""

import sys
from pathlib import Path

import pytest

from hwnas.api.object_names import importable_name


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a script and of the module ``helpers_of_script`` that the script imports."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "helpers_of_script.py").write_text("def make():\n    pass\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "helpers_of_script", raising=False)
    return folder


def test_module_beside_a_script_has_no_name_in_another_folder(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import helpers_of_script  # type: ignore[import-not-found]

    monkeypatch.chdir(beside.parent)
    assert importable_name(helpers_of_script.make) is None
    monkeypatch.chdir(beside)
    assert importable_name(helpers_of_script.make) == "helpers_of_script:make"


def test_object_that_a_module_does_not_have_has_no_name() -> None:
    assert importable_name(Path) == f"{Path.__module__}:Path"
    assert importable_name(lambda: None) is None
    assert importable_name(Path()) is None
