"""Write the kernels of chains to a folder of the tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HWNAS_HOME", str(tmp_path_factory.mktemp("home")))
        yield
