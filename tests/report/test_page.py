import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hwnas.errors import StorageError
from hwnas.report import ObjectiveInfo, ReportData, render, write_report
from hwnas.search.strategies.learning import LearnedDistribution

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


class Reader(HTMLParser):
    """Parser that collects tags, attributes and the text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.words, self.silent = [], [], [], False
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.silent = False

    def handle_data(self, data):
        if not self.silent:
            self.words.append(data)


@pytest.fixture(scope="module")
def page(report_data):
    return render(report_data)


def evil(data):
    """Return the report with a hostile text in place of each name that a user chooses."""
    trials = tuple(
        replace(t, id=EVIL, sampler=EVIL, architecture={EVIL: EVIL}) for t in data.trials
    )
    finalists = tuple(
        replace(
            f,
            id=EVIL,
            picks=(EVIL,),
            metric=EVIL,
            bundle=EVIL,
            architecture={EVIL: EVIL},
            stages=(),
        )
        for f in data.finalists
    )
    return replace(
        data,
        name=EVIL,
        task=EVIL,
        space=EVIL,
        target=EVIL,
        objectives=tuple(replace(o, metric=EVIL, unit=EVIL, target=EVIL) for o in data.objectives),
        trials=trials,
        finalists=finalists,
        calibration=tuple(replace(row, id=EVIL) for row in data.calibration),
        stage_times=tuple(replace(stage, name=EVIL, state=EVIL) for stage in data.stage_times),
        hypervolume=tuple(replace(curve, sampler=EVIL) for curve in data.hypervolume),
        learned=(LearnedDistribution(0.0, EVIL, {EVIL: {EVIL: 1.0}}),),
        break_even=EVIL,
        warnings=(EVIL,),
        versions={EVIL: EVIL},
        hardware={EVIL: EVIL},
        recipe_toml=EVIL,
        next_commands=(EVIL,),
    )


@pytest.fixture
def bare():
    return ReportData(
        name="bare",
        created="today",
        seed=0,
        target="cpu-onnxruntime-fp32-b1-t1",
        task="classification",
        space="mobilenet",
        space_size=12,
        objectives=(ObjectiveInfo("accuracy", "accuracy", "maximize", "", "evaluated"),),
        trials=(),
    )


def test_page_begins_with_the_headline_and_names_kinds_of_numbers(page, report_data):
    text = Reader(page).text
    assert text.index("measured networks for") < text.index("Finalists")
    assert text.index("Finalists") < text.index("Warnings") < text.index("Trade-off")
    for finalist in report_data.finalists:
        assert finalist.bundle in text
    for words in ("evaluated, 95 % interval", "CPU time, n = 60", "n = 360", "counted"):
        assert words in text
    assert "disturbed timing" in text
    assert report_data.break_even in text
    assert report_data.recipe_toml.split("\n")[0] in text


def test_page_loads_nothing_from_outside(page):
    reader = Reader(page)
    links = [v for k, v in reader.attributes if k in ("src", "href", "srcset", "action", "data")]
    assert links == []
    assert not {"link", "iframe", "object", "embed", "base"} & set(reader.tags)
    assert any("default-src 'none'" in (value or "") for _, value in reader.attributes)
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_page_contains_the_plot_library_once_and_stays_small(page):
    assert page.count("plotly.js v") == 1
    assert len(page.encode()) < 6e6


def test_page_shows_hostile_names_as_text(page, report_data):
    harmless, hostile = Reader(page), Reader(render(evil(report_data)))
    assert hostile.tags.count("script") == harmless.tags.count("script")
    assert "img" not in hostile.tags
    assert not [key for key, _ in hostile.attributes if key.startswith("on")]
    assert hostile.text.count("alert(1)") > 20


def test_page_shows_what_a_strategy_learned_if_there_was_one(report_data, bare):
    text = Reader(render(report_data)).text
    assert "What the strategy learned" in text
    assert "expected cost is 0.81 times the mean of the space" in text
    assert "The most probable network is 26eb6c1087d6" in text
    assert "What the strategy learned" not in Reader(render(bare)).text


def test_page_lists_choices_of_spaces_without_a_picture(report_data):
    plain = replace(report_data.finalists[0], stages=())
    text = Reader(render(replace(report_data, finalists=(plain,)))).text
    assert "stage0.block0.kernel_size" in text


def test_page_gives_a_reason_for_each_empty_part(bare):
    text = Reader(render(bare)).text
    for reason in (
        "without a measured finalist so far",
        "No network has been tested and exported yet",
        "No trial has finished",
        "No network was both predicted and measured",
        "No finalist has been tested",
        "No hypervolume was computed",
        "No supernet was trained",
        "No stage has finished",
        "did not record this",
    ):
        assert reason in text


def test_page_says_that_one_objective_has_no_front(bare, report_data):
    data = replace(bare, trials=report_data.trials)
    assert "one objective, so there is no trade-off" in Reader(render(data)).text


def test_page_marks_an_unmeasured_finalist(report_data):
    waiting = replace(report_data.finalists[0], measurement=None, predicted_latency_ms=None)
    assert "not measured" in Reader(render(replace(report_data, finalists=(waiting,)))).text


@pytest.mark.slow
def test_write_report_leaves_one_file_or_raises(report_data, tmp_path):
    path = write_report(report_data, tmp_path / "run" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(StorageError, match=r"cannot write .*report\.html"):
        write_report(report_data, path / "report.html")
