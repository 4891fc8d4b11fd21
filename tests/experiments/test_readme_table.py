from dataclasses import replace
from pathlib import Path
from statistics import median

from experiments.over_cases import mean_over_cases
from experiments.readme_table import (
    FOLDER,
    Headline,
    across,
    caveats,
    crosstab,
    filled,
    headline_table,
    headlines,
    latest,
    markdown,
    other_files,
)
from experiments.readme_table import recorded as recorded_rows
from experiments.record import Results, Row, read_rows

PAGE = "# Title\n\n<!-- results -->\nold\n<!-- /results -->\n\nThe end.\n"


def row(seed: int, value: float | None, unit: str = "rho", metric: str = "spearman") -> Row:
    return Row(metric, "default", seed, value, unit, 30)


def recorded(folder: Path, rows: list[Row], config: int = 0) -> list[Row]:
    path = folder / "predictor" / "results.jsonl"
    Results(path, {"config": config}).put(rows)
    return read_rows(path)


def test_filled_replaces_only_the_text_between_the_markers() -> None:
    page = filled(PAGE, "| new |")
    assert page == PAGE.replace("old", "| new |")
    assert filled(page, "| new |") == page
    assert filled("no markers", "| new |") == "no markers"


def test_markdown_shows_the_median_and_range_over_seeds(tmp_path: Path) -> None:
    table = markdown(recorded(tmp_path, [row(0, 0.9), row(1, 0.97), row(2, 0.95)]))
    assert "| spearman | default | 0.95 | 0.9 to 0.97 | 3 | 30 |" in table
    assert "torch" in table


def test_markdown_shows_fractions_in_percent_and_missing_values_as_none(tmp_path: Path) -> None:
    rows = [row(0, 0.0512, "fraction"), row(0, None, "fraction", "accuracy")]
    table = markdown(recorded(tmp_path, rows))
    assert "5.12 %" in table
    assert "| accuracy | default | none | - |" in table


def test_crosstab_shows_methods_side_by_side_for_each_case(tmp_path: Path) -> None:
    rows = [
        Row("spearman", f"{case} {method}", 0, value, "rho", 15)
        for case, method, value in (("a", "ours", 0.9), ("a", "ridge", 0.8), ("b", "ours", 0.7))
    ]
    table = crosstab(recorded(tmp_path, rows))
    assert "| score | of | ours | ridge |" in table
    assert "| spearman | a | 0.9 | 0.8 |" in table
    assert "| spearman | b | 0.7 | - |" in table


def test_across_shows_one_line_per_subject_with_all_metrics(tmp_path: Path) -> None:
    rows = [Row("tau", "teacher", seed, 0.5 + seed / 10, "tau", 16) for seed in (0, 1)]
    rows.append(Row("interval", "teacher", 0, 0.9, "ratio", 16, {"least": 0.7, "most": 1.1}))
    rows.append(Row("tau", "macs", 0, 0.4, "tau", 16))
    table = across(recorded(tmp_path, rows))
    assert "| of | tau | interval |" in table
    assert "| teacher | 0.55 (0.5 to 0.6) | 0.9 (0.7 to 1.1) |" in table
    assert "| macs | 0.4 | - |" in table


def test_latest_keeps_only_the_last_recorded_configuration(tmp_path: Path) -> None:
    recorded(tmp_path, [row(0, 0.1)], config=0)
    rows = recorded(tmp_path, [row(0, 0.2)], config=1)
    assert len(rows) == 2
    assert [r.value for r in latest(rows)] == [0.2]


def test_latest_by_case_keeps_the_last_configuration_of_each_case(tmp_path: Path) -> None:
    recorded(tmp_path, [Row("lost", "one int8", 0, 0.1, "", 1)], config=0)
    recorded(tmp_path, [Row("lost", "other int8", 0, 0.2, "", 1)], config=1)
    rows = recorded(tmp_path, [Row("lost", "other int8", 0, 0.3, "", 1)], config=2)
    assert [r.value for r in latest(rows, by_case=True)] == [0.1, 0.3]


def test_headline_table_leaves_out_headlines_without_rows(tmp_path: Path) -> None:
    title = headline_table(headlines(), folder=tmp_path).splitlines()
    recorded(tmp_path, [row(0, 0.96)])
    [line] = headline_table(headlines(), folder=tmp_path).splitlines()[len(title) :]
    assert "0.96 (1 seed)" in line


def test_headlines_name_existing_experiments() -> None:
    missing = [
        line for line in headlines() if not (FOLDER / line.experiment / "README.md").exists()
    ]
    assert headlines()
    assert not missing


def test_chosen_headlines_are_few_and_self_contained() -> None:
    few = [line.question for line in headlines() if line.chosen]
    assert 2 <= len(few) <= 6
    assert not [question for question in few if "same" in question.split()[:3]]


def test_headline_table_shows_the_baseline(tmp_path: Path) -> None:
    line = Headline("Q", "w", "predictor", "spearman", "default", "MACs", baseline_subject="macs")
    recorded(tmp_path, [row(0, 0.96), Row("spearman", "macs", 0, 0.9, "rho", 30)])
    assert "| MACs: 0.9 |" in headline_table([line], folder=tmp_path)


def test_headline_table_names_the_machine_of_a_time(tmp_path: Path) -> None:
    line = Headline("Q", "w", "predictor", "spearman", "default", "none")
    [recorded_row] = recorded(tmp_path, [row(0, 5.0, "ms")])
    assert recorded_row.provenance is not None
    assert f"on {recorded_row.provenance.device} |" in headline_table([line], folder=tmp_path)


def test_headline_baselines_are_recorded() -> None:
    for line in headlines():
        rows = read_rows(FOLDER / line.experiment / line.file)
        metric = line.baseline_metric or line.metric
        if rows and line.baseline_subject:
            assert (metric, line.baseline_subject) in {(r.metric, r.subject) for r in rows}


def test_headline_baselines_are_the_strongest_simple_ones() -> None:
    simple = {"macs", "params", "ridge", "ridge-10", "nearest", "nearest-10", "mean", "mean-0"}
    simple |= {"roofline", "liveness", "scaled-liveness"}
    for line in headlines():
        if not line.baseline_subject:
            continue
        rows = recorded_rows(FOLDER / line.experiment, line.file)
        case = line.baseline_subject.rpartition(" ")[0]
        by_method: dict[str, list[float]] = {}
        for found in rows:
            above, _, method = found.subject.rpartition(" ")
            same = found.metric == (line.baseline_metric or line.metric) and above == case
            if same and method in simple and found.value is not None:
                by_method.setdefault(method, []).append(found.value)
        scores = {method: median(values) for method, values in by_method.items()}
        best = max if "spearman" in line.metric or "tau" in line.metric else min
        named = line.baseline_subject.rpartition(" ")[2]
        if named in scores:
            assert scores[named] == best(scores.values()), f"{line.question}: {scores}"


def test_caveats_name_the_machine_of_older_measurements(tmp_path: Path) -> None:
    [here] = recorded(tmp_path, [row(0, 0.9)])
    assert here.provenance is not None
    there = replace(here, provenance=replace(here.provenance, device="Other processor"))
    assert "Measured on Other processor;" in caveats(FOLDER / "predictor", [here], [there])
    assert "Measured" not in caveats(FOLDER / "predictor", [here], [here])


def test_markdown_names_all_commits_and_machines_of_its_rows(tmp_path: Path) -> None:
    [first] = recorded(tmp_path, [row(0, 0.9)])
    assert first.provenance is not None
    older = replace(first.provenance, device="Older", commit="0123456789ab", date="2020-01-01")
    source = markdown([first, replace(first, provenance=older)]).splitlines()[-1]
    assert f"on Older; and on {first.provenance.device};" in source
    assert f"commit 0123456789ab, {first.provenance.commit}," in source


def test_other_files_lists_files_without_a_table_and_their_commits() -> None:
    page = other_files(FOLDER / "deploy")
    assert "| `choices.jsonl` | 88 rows |" in page
    assert "| `fuzz.json` | a report |" in page
    assert "6b417797d66f; [lost_commits.toml](../lost_commits.toml)" in page.replace(
        ", 7f5b16fcc8a6, 80d70caf84ca, 8f7ba00bd732, a61cc62943c5, a64a76802c8c, f4dfb2c3c1f1", ""
    )
    assert "int8" not in page


def test_chosen_headlines_leave_out_unfair_comparisons() -> None:
    unfair = {"cifar10", "own_models", "ranking", "deploy"}
    assert not unfair & {line.experiment for line in headlines() if line.chosen}


def test_mean_over_cases_gives_their_range_and_needs_every_case(tmp_path: Path) -> None:
    rows = [
        Row("spearman", "a ours", 0, 0.9, "rho", 10),
        Row("spearman", "b ours", 0, 0.7, "rho", 5),
        Row("spearman", "a ridge", 0, 0.5, "rho", 10),
    ]
    [mean] = mean_over_cases(rows, {"mean": ["a", "b"], "none": []})
    assert (mean.subject, mean.n, mean.spread) == ("mean ours", 15, {"least": 0.7, "most": 0.9})
    assert mean.value is not None
    assert abs(mean.value - 0.8) < 1e-12
    assert "| spearman | mean ours | 0.8 | 0.7 to 0.9 |" in markdown(recorded(tmp_path, [mean]))
