"""Sessions of OpenVINO: signals of the process, and files that it cannot load."""

import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.deploy import RUNTIMES, Target, export_onnx
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.errors import ArtifactError
from hwnas.search_spaces import Stage, mobilenet

SCRIPT = """
import signal, sys
from pathlib import Path
from hwnas.deploy import RUNTIMES, Target

target = Target.parse("cpu-openvino-fp32-b1-t1")
sessions = [RUNTIMES["openvino"].load(Path(sys.argv[1]), target) for _ in range(3)]
while sessions:
    del sessions[0]
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.slow
def test_openvino_sessions_leave_ctrl_c_working(tmp_path: Path) -> None:
    """Regression test: a session each had its own core, and Ctrl-C ended the process by SIGSEGV."""
    if reason := RUNTIMES["openvino"].unavailable():
        pytest.skip(reason)
    model = tmp_path / "model.onnx"
    write_reference_model(model)
    done = subprocess.run([sys.executable, "-c", SCRIPT, model], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done


@pytest.mark.slow
def test_openvino_names_the_operators_that_it_does_not_know(tmp_path: Path) -> None:
    if reason := RUNTIMES["openvino"].unavailable():
        pytest.skip(reason)
    space = mobilenet(
        (8, 8, 1),
        3,
        stages=(Stage(8, operators=("k3_e1_d",)),),
        resolution=(8,),
        operator_weights="own",
    )
    network = space.build(space.largest())
    path = export_onnx(network, (1, 8, 8), tmp_path / "model.onnx").path
    target = Target.parse("cpu-openvino-fp32-b1-t1")
    with pytest.raises(ArtifactError, match="No conversion rule found for operations: DeformConv"):
        RUNTIMES["openvino"].load(path, target)
