"""What all tests share: one thread, laws without deadlines, real data where it is there."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: the tests' networks are small, and a second thread only disturbs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "hwnas", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hwnas")


@pytest.fixture(scope="session")
def hwnas_data() -> Path:
    """The folder of real data sets that ``HWNAS_DATA`` names."""
    folder = os.environ.get("HWNAS_DATA")
    if not folder:
        pytest.skip("HWNAS_DATA is not set: it names the folder with the real data sets")
    if not Path(folder).is_dir():
        pytest.skip(f"HWNAS_DATA is {folder}, which is no folder")
    return Path(folder)
