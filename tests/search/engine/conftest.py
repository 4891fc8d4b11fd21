from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SEARCH_TESTS = Path(__file__).parents[1]


@pytest.fixture
def run_script() -> Callable[..., Any]:
    """Return a function that runs a script and returns the JSON value that it prints last.

    The script runs in a process of its own, which can import the modules of these tests; ``{here}``
    is their folder.
    """

    def run(script: str, **values: object) -> Any:
        here = str(SEARCH_TESTS)
        text = f"import sys\nsys.path.insert(0, {here!r})\n" + script.format(here=here, **values)
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
