"""Text from others never acts on a terminal or reorders a page: what cannot be printed is shown as an escape."""

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.printable import LogPrinter, printable, printable_json

HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x07\x08\r\n\t\x7f\x9b\u202e\u2066\u200f\u061c\u2028\ufeff\U000e0041\ud800[;m0123Jé"),
    )
)
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def acts(text: str) -> str:
    """The characters of a text that a terminal or a page would obey instead of showing them."""
    marks = [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn")]
    return "".join(char for char in marks if char not in "\u200c\u200d")


@given(HOSTILE)
def test_nothing_that_acts_is_left_in_a_line(text: str) -> None:
    shown = printable(text)
    assert not acts(shown)
    shown.encode()
    if not acts(text):
        assert shown == text


@given(HOSTILE)
def test_only_kept_characters_act(text: str) -> None:
    assert not set(acts(printable(text, keep="\n\t"))) - set("\n\t")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\nc", "a\\x0db\\x0ac"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\x9b31m", "\\x9b31m"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve – 学习 👩‍💻 a\xa0b", "naïve – 学习 👩‍💻 a\xa0b"),
    ],
)
def test_an_escape_names_the_character(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.recursive(HOSTILE, lambda inner: st.lists(inner) | st.dictionaries(HOSTILE, inner), max_leaves=8))
def test_a_json_document_stays_the_same_document(document: object) -> None:
    text = printable_json(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(text) == document
    assert not set(acts(text)) - {"\n"}
    text.encode()


@given(st.lists(HOSTILE))
def test_of_a_log_only_line_breaks_tabs_and_colours_act_however_it_is_cut(pieces: list[str]) -> None:
    printer = LogPrinter()
    shown = "".join(map(printer.feed, pieces)) + printer.finish()
    assert not set(acts(COLOUR.sub("", shown))) - set("\n\t")
    whole = LogPrinter()
    assert whole.feed("".join(pieces)) + whole.finish() == shown


def test_a_colour_whose_sequence_comes_in_two_pieces_is_a_colour() -> None:
    printer = LogPrinter()
    assert [printer.feed("a\x1b[3"), printer.feed("1mred"), printer.finish()] == ["a", "\x1b[31mred", "\x1b[0m"]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("loss 1\tok\n", "loss 1\tok\n"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("end\x1b[3", "end\\x1b[3"),
        ("end\r", "end\n"),
    ],
)
def test_a_log_keeps_its_colours_and_loses_its_commands(log: str, shown: str) -> None:
    printer = LogPrinter()
    assert printer.feed(log) + printer.finish() == shown
