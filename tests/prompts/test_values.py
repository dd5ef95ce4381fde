"""Shapes of values: moments, identifiers, numbers."""

import pytest

from kvtool.prompts.values import is_clock, is_date, is_identifier, is_number, moments


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-15 15:00:00 EST",
        "2025-03-01T09:15:22.123Z",
        "2025-03-01 09:15:22+00:00",
        "Monday, March 3, 2025 at 10:15 AM (UTC)",
        "Mon Mar  3 10:15:22 2025",
        "Sat, 01 Mar 2025 09:15:22 GMT",
        "10:15:22 on 2025-03-04",
        "03/04/2025, 10:15:22 AM",
        "20250301T091522Z",
        "10:15 UTC on Tuesday",
        "1772000000",
        "2025年3月4日 10:15",
    ],
)
def test_clocks_are_found_whole(text: str) -> None:
    sentence = f"It is {text}, so hurry."
    assert [sentence[a:b] for a, b in moments(sentence)] == [text]
    assert is_clock(text)
    assert not is_date(text)


@pytest.mark.parametrize(
    "text", ["2025-03-01", "Tuesday, 4 March 2025", "March 3rd, 2025", "3/4/25", "Friday"]
)
def test_dates_are_not_clocks(text: str) -> None:
    assert is_date(text)
    assert not is_clock(text)


def test_a_sentence_end_is_not_part_of_the_moment() -> None:
    assert [text[a:b] for text in ["Today is Sunday."] for a, b in moments(text)] == ["Sunday"]


@pytest.mark.parametrize("text", ["May I help?", "The sun is out", "room 1015", "version 3.14"])
def test_prose_is_no_moment(text: str) -> None:
    assert not is_clock(text)
    assert not is_date(text)


@pytest.mark.parametrize(
    "text",
    ["9f8e7d6c5b4a", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "req_01HZX4", "ZHVtbXkgdGV4dA", "83920175"],
)
def test_identifiers(text: str) -> None:
    assert is_identifier(text)


@pytest.mark.parametrize("text", ["Ann", "enterprise", "two words 12ab", "", "professional", "de"])
def test_words_are_no_identifiers(text: str) -> None:
    assert not is_identifier(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("12%", True), ("1,204 tokens", True), ("$3.50", True), ("v12b", False)]
)
def test_numbers(text: str, expected: bool) -> None:
    assert is_number(text) is expected


def test_a_bracket_around_a_moment_is_not_part_of_it() -> None:
    texts = ["[clock: 2025-03-01 09:15]", "(now 09:15 UTC)", "2025-03-01 (09:15)"]
    found = [[text[a:b] for a, b in moments(text)] for text in texts]
    assert found == [["2025-03-01 09:15"], ["09:15 UTC"], ["2025-03-01 (09:15)"]]
