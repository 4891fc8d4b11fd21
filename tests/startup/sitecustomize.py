"""Short timings in the processes that tests start; Python imports this module when it starts.

`tests/conftest.py` adds this folder to ``PYTHONPATH``. The import of `MODULE` then ends with a
`TimingSettings` whose defaults are those of the environment variable ``HWNAS_TEST_TIMINGS``.
"""

import importlib.util
import json
import os
import sys
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULE = "hwnas.deploy.measurement.timing"


class ShortTimings(MetaPathFinder):
    """Finder that changes one module after its import."""

    asked = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the specification of the module to change; None for other modules."""
        if name != MODULE or self.asked:
            return None
        self.asked = True  # the other finders answer now
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            short = json.loads(os.environ["HWNAS_TEST_TIMINGS"])
            module.TimingSettings = partial(module.TimingSettings, **short)  # type: ignore[attr-defined]

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if "HWNAS_TEST_TIMINGS" in os.environ:
    sys.meta_path.insert(0, ShortTimings())
