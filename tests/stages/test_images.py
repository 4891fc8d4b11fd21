"""Notes of a run about its images."""

from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.loading import load_data
from hwnas.stages.images import tell_changed_images


def notes_of(folder: Path) -> list[str]:
    """Return the notes about the images in ``folder:set``."""
    notes: list[str] = []
    data = load_data(DataConfig("folder:set", skip_damaged=True), folder, 0, folder / "cache")
    job = SimpleNamespace(
        folder=SimpleNamespace(path=folder),
        run_inputs=SimpleNamespace(data=data),
        reporter=SimpleNamespace(note=notes.append),
    )
    tell_changed_images(job)  # type: ignore[arg-type]
    return notes


def test_run_notes_name_damaged_and_changed_images(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / f"set/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    assert notes_of(tmp_path) == []
    (tmp_path / "set/b/3.png").write_text("?")
    assert notes_of(tmp_path) == [
        "data: 1 damaged image is left out: b/3.png",
        "data: 1 of 40 files changed (b/3.png)",
    ]
    for number in range(5, 19, 2):
        (tmp_path / f"set/b/{number}.png").write_text("?")
    named = ", ".join(f"b/{number}.png" for number in (11, 13, 15, 17, 3))
    assert notes_of(tmp_path)[0] == f"data: 8 damaged images are left out: {named} and 3 more"
