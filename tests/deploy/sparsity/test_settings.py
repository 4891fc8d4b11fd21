"""Names of sparse variants."""

from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy.sparsity import Structure
from hwnas.deploy.sparsity.criteria import CRITERIA
from hwnas.deploy.sparsity.settings import SparsitySettings


@given(
    structure=st.sampled_from(["unstructured", "block16x16"]),
    percent=st.none() | st.integers(1, 100),
    criterion=st.sampled_from(sorted(CRITERIA)),
    searched=st.booleans(),
    by_macs=st.booleans(),
    refined=st.booleans(),
)
def test_words_of_settings_are_parsed_to_the_same_settings(
    structure: str,
    percent: int | None,
    criterion: str,
    searched: bool,
    by_macs: bool,
    refined: bool,
) -> None:
    settings = SparsitySettings(
        Structure.parse(structure),
        None if percent is None else percent / 100,
        criterion,
        searched,
        by_macs and searched,
        refined,
    )
    assert SparsitySettings.parse(settings.words) == settings
