from html.parser import HTMLParser

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


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_is_text_and_nothing_else(text):
    reader = Reader()
    reader.feed(element("p", text, title=text))
    reader.close()
    assert (reader.tags, reader.values, reader.text) == (["p"], [text], text)


def test_markup_is_not_escaped_twice():
    inner = element("b", "a < b")
    assert element("p", inner, " & c") == "<p><b>a &lt; b</b> &amp; c</p>"
    assert join([inner, "<"], ", ") == "<b>a &lt; b</b>, &lt;"


def test_attributes():
    shown = element("meta", name="x", http_equiv="y", class_="z", content=None)
    assert shown == '<meta name="x" http-equiv="y" class="z">'
    assert isinstance(shown, Html)
