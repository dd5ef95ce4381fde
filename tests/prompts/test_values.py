"""Shapes of values: moments, identifiers, numbers."""

import pytest

from kvtool.prompts.values import is_clock, is_code, is_date, is_epoch, is_identifier, is_number, moments


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-15 15:00:00 EST",
        "09.26 AM CET",
        "14.03.2026, 9.26 Uhr",
        "030926ZMAR26",
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
        "2026年3月14日 19時12分36秒",
        "2026年3月14日星期六 下午3点05分",
        "2026년 3월 14일 (토) 오후 3시 5분",
        "Samstag, der 14. März 2026, 09:26 Uhr",
        "sábado 14 de marzo de 2026, 9:26 a. m.",
        "samedi 14 mars 2026 à 09h26",
        "суббота, 14 марта 2026 г., 09:26",
        "lördag den 14 mars 2026 kl. 09:26",
    ],
)
def test_clocks_are_found_whole(text: str) -> None:
    sentence = f"It is {text}, so hurry."
    assert [sentence[a:b] for a, b in moments(sentence)] == [text]
    assert is_clock(text)
    assert not is_date(text)


@pytest.mark.parametrize(
    "text",
    [
        "2025-03-01",
        "Tuesday, 4 March 2025",
        "March 3rd, 2025",
        "3/4/25",
        "Friday",
        "9 de agosto de 2026",
        "14.03.2026",
        "20260314",
        "2026-W32",
        "令和8年3月14日",
        "2026年8月3日（月）",
        "Donnerstag",
    ],
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


@pytest.mark.parametrize("value", ["198,127", "0.0148", "$1.25", "3/10", "12%", "残り15974"])
def test_amounts_are_no_identifiers(value: str) -> None:
    assert not is_identifier(value)


def test_a_snowflake_is_an_identifier_and_no_clock() -> None:
    assert is_identifier("1186939962107496397")
    assert not is_clock("1186939962107496397")
    assert not is_number("1186939962107496397")


def test_codes_are_told_from_words_by_their_vowels_and_length() -> None:
    assert is_code(["JKXXFW", "HAQJUF", "QZTRBM", "WPLKDA"])
    assert not is_code(["PARIS", "TOKYO", "MIAMI", "CAIRO"])  # words
    assert not is_code(["JKXXFW", "HAQJ", "QZTRBM", "WPLKDA"])  # of many lengths
    assert not is_code(["JKXXFW", "HAQJUF"])  # too few to tell


def test_a_stamp_alone_is_an_epoch() -> None:
    assert is_epoch("1772530000.271590") and is_epoch(" 1772530000 ")
    assert not is_epoch("at 1772530000") and not is_epoch("177253000")
