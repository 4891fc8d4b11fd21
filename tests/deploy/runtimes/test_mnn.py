import subprocess
import sys

import pytest

from hwnas.deploy import RUNTIMES, Export

COMMAND = """
from pathlib import Path
import sys
from hwnas.deploy import Target
from hwnas.deploy.runtimes import open_session
print(open_session(Path(sys.argv[1]), Target.parse("cpu-mnn-fp32-b1-t1")).input_shape)
"""


@pytest.mark.slow
def test_mnn_writes_nothing_to_standard_output(exported: Export) -> None:
    """The MNN library writes to standard output, which would corrupt the JSON of hwnas."""
    if reason := RUNTIMES["mnn"].unavailable():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, exported.path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(1, 8, 8)\n"
