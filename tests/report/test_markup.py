from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.report.markup import Html, element, join


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.values, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.values += [value for _, value in attrs]

    def handle_data(self, data):
        self.text += data


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_element_escapes_any_text(text):
    reader = Reader()
    reader.feed(element("p", text, title=text))
    reader.close()
    assert (reader.tags, reader.values, reader.text) == (["p"], [text], text)


def test_element_escapes_nested_markup_only_once():
    inner = element("b", "a < b")
    assert element("p", inner, " & c") == "<p><b>a &lt; b</b> &amp; c</p>"
    assert join([inner, "<"], ", ") == "<b>a &lt; b</b>, &lt;"


def test_element_translates_attribute_names_and_leaves_out_none():
    shown = element("meta", name="x", http_equiv="y", class_="z", content=None)
    assert shown == '<meta name="x" http-equiv="y" class="z">'
    assert isinstance(shown, Html)
