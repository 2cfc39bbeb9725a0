"""Text and numbers as they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.frame import recording
from app.records import Newest
from app.wording import age_text, bits_text, bracket_text, count, plain, size_text, span_text


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (count(1, "step"), "1 step"),
        (count(1200, "pass", "passes"), "1,200 passes"),
        (span_text(1, 60), "1 to 60"),
        (span_text(5, 5), "5"),
        (span_text(None, None), "none"),
        (bracket_text(20, 40), "(20, 40]"),
        (bracket_text(None, 40), "(start, 40]"),
        (size_text(10_065_775), "10.1 MB"),
        (size_text(999), "999 B"),
        (size_text(None), "–"),
        (age_text(3.2), "3 s"),
        (age_text(119), "119 s"),
        (age_text(300), "5 min"),
        (age_text(7_200), "2 h"),
        (age_text(-5), "0 s"),
        (bits_text([3, 19]), "3, 19"),
        (bits_text(None), ""),
    ],
)
def test_numbers_have_units(printed: str, expected: str) -> None:
    assert printed == expected


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=30))
def test_markdown_shows_the_text_as_it_is(text: str) -> None:
    # CommonMark: a backslash before ASCII punctuation stands for that character and nothing else
    escaped = plain(text)
    marks = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    shown, place = "", 0
    while place < len(escaped):
        if escaped[place] == "\\":
            place += 1
            assert escaped[place] in marks
        else:
            assert escaped[place] not in marks
        shown += escaped[place]
        place += 1
    assert shown == " ".join(text.split())


@pytest.mark.parametrize(
    ("newest", "text"),
    [
        (Newest(40, 1000.0, 0.5), "recording, newest step 40"),
        (Newest(40, 945.0, 0.5), "recording, newest step 40"),
        (Newest(40, 800.0, 0.5), "newest step 40, 3 min ago: ended, or stalled"),
        (Newest(40, 800.0, 60.0), "recording, newest step 40"),  # its steps are slow
        (Newest(40, 1000.0, 0.5, ended=True), "newest step 40, 3 s ago: ended"),
        (Newest(40, None, None), "newest step 40"),
        (Newest(40, None, None, ended=True), "newest step 40: ended"),
    ],
)  # fmt: skip
def test_the_state_of_the_recording(newest: Newest, text: str) -> None:
    assert recording(newest, 1003.0) == text
