"""Packed agent: it contains the modules that it needs and imports no others."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from tests.deploy.agent.conftest import NAME, QUICK, Outside

from hwnas.deploy import Target, measure
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.pack import packed_modules, write_pack
from hwnas.errors import ConfigError

ALLOWED = {"numpy", "onnx", "onnxruntime", "cryptography"}
NEEDS = {"google", "ml_dtypes", "typing_extensions", "flatbuffers", "packaging"}
NEEDS |= {"cffi", "_cffi_backend"}
"""What the allowed ones need themselves."""
HIDDEN = """
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        spec = self.finder.find_spec(name, path, target)
        if name.split(".")[0] in sys.stdlib_module_names | {allowed}:
            return spec
        # ONNX Runtime has modules in its folder that it imports by names without a package.
        return spec if spec and "/onnxruntime/" in str(spec.origin) else None
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Hiding, sys.meta_path)
sys.path.insert(0, {pack!r})
from pathlib import Path
import hwnas
assert hwnas.__file__.startswith({pack!r}), hwnas.__file__
import hwnas.deploy.agent.command, hwnas.deploy.agent.server.worker
import hwnas.deploy.agent.client.client
from hwnas.deploy.measurement import timing
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.targets.target import Target
from hwnas.deploy.targets.status import devices_here
from hwnas.deploy.agent.server.certificate import own_certificate
own_certificate(Path({folder!r}, "certificate.pem")).context()
usable = {{each.target: each.usable for each in devices_here()}}
model = Path({model!r})
settings = TimingSettings(warmup=1, rounds=5)
for name in ("int8", "fp16"):
    target = Target.parse(f"cpu-onnxruntime-{{name}}-b1-t1")
    assert timing.measure({{"network": model}}, target, settings)["network"].latency_ms > 0
assert [kind for kind in usable if usable[kind]] == [
    f"cpu-onnxruntime-{{name}}-b{{{{B}}}}-t{{{{T}}}}" for name in ("fp32", "fp16", "int8")
]
print("measured")
"""


@pytest.mark.slow
def test_packed_agent_imports_only_allowed_packages(
    pack: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    allowed = ALLOWED | NEEDS | {"hwnas"}
    code = HIDDEN.format(
        allowed=repr(allowed), pack=str(pack), model=str(model), folder=str(tmp_path)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "measured", done.stderr


def test_packed_agent_contains_only_the_deploy_layer(pack: Path) -> None:
    names = set(zipfile.ZipFile(pack).namelist())
    assert {
        "__main__.py",
        "hwnas/deploy/measurement/timing.py",
        "hwnas/deploy/agent/server/worker.py",
    } <= names
    floors = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert floors == {"deploy"}, "nothing of the floors above or beside"
    assert packed_modules()["hwnas.deploy"] is False, "its face imports all of hwnas"
    assert pack.stat().st_size < 200_000


def test_write_pack_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        write_pack(tmp_path)


def test_packed_agent_reports_a_wrong_option_in_one_line(pack: Path) -> None:
    command = [sys.executable, str(pack), "serve", "--port", "99999"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: --port is 99999; expected 0 to 65535"]


@pytest.mark.slow
def test_packed_agent_works_in_an_environment_with_only_its_dependencies(
    pack: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "numpy", "onnx", "onnxruntime", "cryptography"]
    if subprocess.run(install).returncode:
        pytest.skip("numpy, onnx, onnxruntime and cryptography cannot be installed from here")
    there = Outside(pack, tmp_path / "outside", str(python))
    try:
        device = add_device(NAME, there.address, there.token)
        assert device.kinds == tuple(f"onnxruntime-{name}" for name in ("fp32", "fp16", "int8"))
        for number_format in ("fp32", "int8"):
            target = Target.parse(f"{NAME}-onnxruntime-{number_format}-b1-t1")
            found = measure({"network": model}, target, QUICK)["network"]
            assert found.latency_ms > 0
            assert found.versions["hwnas"]
    finally:
        there.kill()
