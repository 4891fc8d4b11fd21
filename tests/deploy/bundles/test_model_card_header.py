from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.deploy import Bundle
from hwnas.deploy.bundles.model_card import card
from hwnas.deploy.bundles.model_card_header import card_header

keep_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"]))


def head(description: Any) -> Any:
    first, *lines, last = card_header(description)
    assert first == last == "---"
    assert not [line for line in lines if "\n" in line]
    return yaml.safe_load("\n".join(lines))


def test_card_starts_with_the_header_that_model_hubs_read(packed: Bundle) -> None:
    text = (packed.folder / "README.md").read_text()
    assert text.startswith("---\nlicense: unknown\n")
    found = yaml.safe_load(text.split("---\n")[1])
    assert found["library_name"] == "onnx"
    assert found["pipeline_tag"] == "image-classification"
    (model,) = found["model-index"]
    (result,) = model["results"]
    assert model["name"] == packed.description["id"]
    assert result["task"] == {"type": "image-classification"}
    assert result["dataset"]["split"] == "test"
    assert result["metrics"] == [
        {
            "type": "accuracy",
            "value": 0.97,
            "name": "accuracy (evaluated, test, n = 360, fraction)",
        }
    ]


def test_card_header_lists_only_evaluated_numbers_as_results(packed: Bundle) -> None:
    numbers = [
        {"name": "macs", "value": 5, "kind": "counted"},
        {"name": "loss", "value": 1e-5, "kind": "evaluated", "split": "validation"},
        {"name": "loss", "value": float("nan"), "kind": "evaluated", "split": "test"},
    ]
    (model,) = head({**packed.description, "metrics": numbers})["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["split"] == "validation"
    assert [metric["value"] for metric in result["metrics"]] == [1e-5]
    assert "model-index" not in head({**packed.description, "metrics": numbers[:1]})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("MIT", {"license": "mit"}),
        ("CC BY 4.0", {"license": "cc-by-4.0"}),
        ("My own", {"license": "other", "license_name": "My own"}),
        ("Apache 2.0", {"license": "apache-2.0"}),
        ("as you: like\n- it", {"license": "other", "license_name": "as you: like\n- it"}),
    ],
)
def test_card_header_maps_licences_to_hub_identifiers(
    packed: Bundle, given: str, expected: dict[str, str]
) -> None:
    found = head({**packed.description, "provenance": {"licence": given}})
    assert {key: value for key, value in found.items() if "license" in key} == expected


@keep_fixture
@given(texts, texts, st.floats(allow_nan=False, allow_infinity=False))
def test_card_header_round_trips_any_text_and_number(
    packed: Bundle, text: str, split: str, value: float
) -> None:
    number = {"name": text, "value": value, "kind": "evaluated", "split": split}
    changed = {**packed.description, "metrics": [number], "provenance": {"data": {"source": text}}}
    (result,) = head(changed)["model-index"][0]["results"]
    assert result["dataset"] == {"name": text, "type": text, "split": split}
    assert result["metrics"][0]["type"] == text
    assert result["metrics"][0]["value"] == value


def test_card_header_has_no_pipeline_tag_for_values(packed: Bundle) -> None:
    outputs = {**packed.description["outputs"], "kind": "values"}
    found = head({**packed.description, "outputs": outputs})
    assert "pipeline_tag" not in found
    assert card({**packed.description, "outputs": outputs}).startswith("---\n")
