import psutil

from hwnas.deploy import machine, versions


def test_machine_describes_processor_cores_memory_and_system() -> None:
    found = machine()
    assert {"processor", "cores", "memory", "system", "python"} <= set(found)
    assert all(isinstance(value, str) and value for value in found.values())
    assert f"{psutil.cpu_count()} logical" in found["cores"]


def test_versions_lists_the_runtime_packages_that_are_installed() -> None:
    found = versions()
    assert {"hwnas", "torch", "numpy", "onnxruntime"} <= set(found)
    assert not {"pytest", "ruff"} & set(found)
    assert list(versions(["no-such-package", "numpy"])) == ["hwnas", "numpy"]
