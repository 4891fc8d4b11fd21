"""Android devices, replaced by a program that answers as ``adb`` does; no device was at hand."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from hwnas.deploy import Target, measure
from hwnas.deploy.agent.client.adb import PROGRAMS
from hwnas.deploy.agent.client.client import devices_elsewhere
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.errors import ArtifactError, ConfigError, DeviceError

PROGRAM = "/data/local/tmp/onnxruntime_perf_test"
TARGET = "pixel-onnxruntime-fp32-b1-t1"

SHELL = """\
#!{python}
import os, shlex, shutil, sys
from pathlib import Path

root = Path({root!r})
serial, kind, *rest = sys.argv[2:]
with (root / "log").open("a") as log:
    log.write(" ".join([kind, *rest]) + "\\n")
if serial != "SERIAL" or (root / "unplugged").exists():
    sys.exit(f"error: device '{{serial}}' not found")
if kind == "push":
    shutil.copy(rest[0], root / Path(rest[1]).name)
    sys.exit()
words = shlex.split(rest[0])
if words[0] == "getprop":
    print({{"ro.product.manufacturer": "Google", "ro.product.model": "Pixel 8"}}.get(words[1], ""))
elif words[0] == "ls":
    known = words[1] == "{program}" or (root / Path(words[1]).name).exists()
    sys.exit(0 if known else f"ls: {{words[1]}}: No such file or directory")
elif words[0] == "mv":
    (root / Path(words[1]).name).rename(root / Path(words[2]).name)
elif words[0] == "{program}":
    ms = (root / Path(words[-1]).name).stat().st_size / 1e5
    if (root / "breaks").exists():
        sys.exit("terminate called after throwing an instance of 'Ort::Exception'")
    print(f"Total inference requests: 100")
    print(f"P50 Latency: {{ms / 1e3}} s")
    print(f"P95 Latency: {{1.2 * ms / 1e3}} s")
"""


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of what was pushed to the device, with ``log``, all commands."""
    root, programs = tmp_path / "phone", tmp_path / "programs"
    root.mkdir()
    programs.mkdir()
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    adb = programs / "adb"
    adb.write_text(SHELL.format(python=sys.executable, root=str(root), program=PROGRAM))
    adb.chmod(adb.stat().st_mode | stat.S_IXUSR)
    return root


@pytest.fixture
def added(phone: Path) -> Path:
    add_device("pixel", "adb://SERIAL", "", PROGRAM, patience_s=0.0)
    return phone


def test_networks_are_timed_by_a_program_on_the_device(added: Path, model: Path) -> None:
    found = measure({"network": model}, Target.parse(TARGET))["network"]
    assert found.latency_ms == pytest.approx(model.stat().st_size / 1e5)
    assert found.headline.p95 == pytest.approx(1.2 * found.latency_ms)
    assert (found.target, found.clock, found.hardware) == (TARGET, "wall", "Google Pixel 8")
    assert found.anchor_ms == pytest.approx(found.latency_ms), "it is the reference model itself"
    assert not found.contended
    timed = [line for line in (added / "log").read_text().splitlines() if PROGRAM in line]
    assert "-x 1" in timed[-1]
    pushed = (added / "log").read_text().count("push ")
    measure({"network": model}, Target.parse(TARGET))
    assert (added / "log").read_text().count("push ") == pushed, "no file is sent twice"


def test_device_is_listed_with_the_runtime_of_its_program(added: Path) -> None:
    found = {kind: why for name, kind, why, _ in devices_elsewhere() if name == "pixel"}
    assert found == {"onnxruntime-fp32": "", "onnxruntime-fp16": "", "onnxruntime-int8": ""}
    (added / "unplugged").touch()
    assert {why for *_, why, _ in devices_elsewhere()} == {
        "pixel at adb://SERIAL does not answer (error: device 'SERIAL' not found); check that the "
        "machine is on and its agent runs"
    }


def test_what_the_device_cannot_do_is_refused(added: Path, model: Path) -> None:
    with pytest.raises(DeviceError, match="pixel measures latency, not peak_memory"):
        peak_memory(model, Target.parse(TARGET))
    with pytest.raises(DeviceError, match="onnxruntime_perf_test, which is for onnxruntime"):
        measure({"network": model}, Target.parse("pixel-mnn-fp32-b1-t1"))
    (added / "breaks").touch()
    with pytest.raises(ArtifactError, match=r"printed no times, but: terminate called"):
        measure({"network": model}, Target.parse(TARGET))


@pytest.mark.parametrize(
    ("address", "program", "told"),
    [
        ("adb://", PROGRAM, "as `adb devices` lists"),
        ("adb://two words", PROGRAM, "expected adb://SERIAL"),
        ("adb://SERIAL", "hwnas agent", "expected the path of benchmark_model or"),
        ("adb://SERIAL", "onnxruntime_perf_test", "expected the path of benchmark_model or"),
        ("adb://SERIAL", "/sdcard/onnxruntime_perf_test", "there is no /sdcard/onnxruntime_perf"),
        ("adb://OTHER", PROGRAM, "'OTHER' not found"),
    ],
)
def test_wrong_devices_are_refused(phone: Path, address: str, program: str, told: str) -> None:
    with pytest.raises((ConfigError, DeviceError), match=told) as raised:
        add_device("pixel", address, "", program, patience_s=0.0)
    assert len(str(raised.value).splitlines()) == 1


def test_missing_adb_says_what_installs_it(
    phone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="apt-get install adb"):
        add_device("pixel", "adb://SERIAL", "", PROGRAM, patience_s=0.0)


@pytest.mark.parametrize(
    ("program", "text", "found"),
    [
        (
            "benchmark_model",
            "INFO: count=9 first=8 curr=8 min=8 max=9 avg=8 std=1 p5=8 median=8 p95=9\n"
            "INFO: count=50 first=1300 curr=1240 min=1238 max=1.25e+03 avg=1.24027e+03 std=2 "
            "p5=1238 median=1239 p95=1247\n"
            "INFO: Inference timings in us: Init: 5579, Inference (avg): 1240.27\n",
            (1.239, 1.247, 50),
        ),
        (
            "benchmark_model",
            "count=50 first=249042 curr=250889 min=247067 max=254474 avg=249684 std=1442\n",
            (249.684, None, 50),
        ),
        (
            "onnxruntime_perf_test",
            "Total iterations:1000\nP50 Latency is 0.0587108sec\nP95 Latency is 0.0605676sec\n"
            "P999 Latency is 0.0623472sec\n",
            (58.7108, 60.5676, 1000),
        ),
        (
            "onnxruntime_perf_test",
            "Total inference requests: 321\nP50 Latency: 8.5e-05 s\nP95 Latency: 9e-05 s\n",
            (0.085, 0.09, 321),
        ),
    ],
)
def test_times_are_read_from_what_programs_print(
    program: str, text: str, found: tuple[float, float | None, int]
) -> None:
    times = PROGRAMS[program].read(text)
    assert (times.middle_ms, times.p95_ms, times.runs) == pytest.approx(found)
    for useless in ("", "count=3", "P50 Latency: 1 s", "error"):
        with pytest.raises(ValueError, match="no times"):
            PROGRAMS[program].read(useless)
