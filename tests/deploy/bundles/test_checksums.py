import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from hwnas.deploy.bundles.checksums import inside, read_sums, render_sums, sha256
from hwnas.errors import ArtifactError


def test_checksums_round_trip(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    sums = {"b with space": "0" * 64, "a": sha256(tmp_path / "a")}
    assert sums["a"] == hashlib.sha256(b"a").hexdigest()
    (tmp_path / "sums").write_text(render_sums(sums))
    assert read_sums(tmp_path / "sums") == sums


@pytest.mark.parametrize(
    "content",
    [
        "x",
        "0" * 64 + " a\n",
        "A" * 64 + "  a\n",
        "0" * 64 + "  a",
        "0" * 64 + "  a\r\n\n",
        "\n",
        "\udcff",
    ],
)
def test_read_sums_refuses_damaged_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "sums"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match="damaged"):
        read_sums(path)


def test_checksums_name_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nowhere cannot be read"):
        sha256(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="nowhere"):
        read_sums(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\0b", 3, None])
def test_inside_refuses_names_outside_the_folder(tmp_path: Path, name: object) -> None:
    with pytest.raises(ArtifactError, match="not inside the folder"):
        inside(tmp_path, name)


def test_inside_refuses_links_to_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "link").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="not inside the folder"):
        inside(tmp_path / "bundle", "link")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_accepts_the_checksum_file_of_a_bundle(folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "bundle.sha256"]
    assert subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0
