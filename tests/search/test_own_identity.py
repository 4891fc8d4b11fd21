from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hwnas.errors import ConfigError
from hwnas.recipe import read_recipe
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation import own_identity
from hwnas.search.evaluation.own_identity import check_identity, check_key
from hwnas.stages import RunInputs


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("Addressed", r"is identified by its address in memory \(<.* at 0x.*give it a __repr__"),
        (
            "Ordered",
            r"Ordered' differs between processes \(Ordered\(\{'.*make it a frozen dataclass",
        ),
        ("Hashed", r"Hashed' differs between processes \(Hashed\("),
        ("Counted", r"Counted' differs each time it is created \(Counted\("),
        ("with_function", r"'unstable_parts:with_function'.*"),
    ],
)
def test_run_inputs_refuse_a_task_that_differs_between_processes(
    tiny_recipe: Path, tmp_path: Path, task: str, message: str
) -> None:
    recipe, _ = read_recipe(tiny_recipe, [f"task.name=unstable_parts:{task}"])
    with pytest.raises(ConfigError, match=message) as caught:
        RunInputs.prepare(recipe, tmp_path)
    assert f"task 'unstable_parts:{task}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_run_inputs_accept_a_task_with_a_stable_repr(tiny_recipe: Path, tmp_path: Path) -> None:
    recipe, _ = read_recipe(tiny_recipe, ["task.name=unstable_parts:Fine"])
    assert repr(RunInputs.prepare(recipe, tmp_path).task).startswith("Fine(Class")


def test_check_identity_starts_no_process_for_plain_values(
    monkeypatch: pytest.MonkeyPatch, few_digits: ImageData
) -> None:
    from ink_centre import task

    monkeypatch.setattr(own_identity, "_elsewhere", lambda *given: pytest.fail("a process"))
    check_identity("task", task(few_digits))


@pytest.mark.slow
def test_check_identity_refuses_a_space_with_a_changing_fingerprint() -> None:
    from unstable_parts import HashedDials

    from own_parts import Dials

    check_identity("space", Dials(), "fingerprint")
    with pytest.raises(
        ConfigError, match=r"the identity of space 'own:Dials' differs between processes \('dials"
    ):
        check_identity("space 'own:Dials'", HashedDials(), "fingerprint")


@pytest.mark.parametrize("key", [None, "", "<own.Evaluator object at 0x7f0000000000>", 7])
def test_check_key_refuses_an_empty_or_meaningless_key(key: object) -> None:
    from own_parts import EvenDials

    named = EvenDials(key="as it was given")
    check_key("own:EvenDials", named)
    assert named.key == "as it was given"
    with pytest.raises(ConfigError, match="evaluator 'own:EvenDials' has the key "):
        check_key("own:EvenDials", EvenDials(key=key))  # type: ignore[arg-type]


def test_check_key_refuses_a_changing_key() -> None:
    counts = itertools.count()

    class Changing:
        @property
        def key(self) -> str:
            return f"key-{next(counts)}"

    with pytest.raises(ConfigError, match="returns a different key each time"):
        check_key("own:Changing", Changing())  # type: ignore[arg-type]
