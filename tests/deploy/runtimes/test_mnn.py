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


def test_it_leaves_the_standard_output_to_us(exported: Export) -> None:
    """MNN writes there itself, and whoever reads our JSON would get that, too."""
    if reason := RUNTIMES["mnn"].unavailable():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, exported.path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(1, 8, 8)\n"
