"""Forms of a text: what counts as the same text, and which print of it is the usual one."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kvtool.prompts.forms import canonical, canonical_tool, off_form, plain

TEXT = "Sei höflich.\nFrage nach der Kundennummer.\n"
DECOMPOSED = unicodedata.normalize("NFD", TEXT)


def test_the_most_frequent_print_is_the_usual_one() -> None:
    texts = {0: TEXT, 1: TEXT.replace("\n", "\r\n"), 2: TEXT, 3: DECOMPOSED}
    assert off_form(texts, dict.fromkeys(texts, 0)) == {1: TEXT, 3: TEXT}


def test_other_words_are_no_other_form() -> None:
    assert off_form({0: TEXT, 1: TEXT + "Danke."}, {0: 0, 1: 0}) == {}


def test_forms_are_told_apart_beside_a_clock_where_one_conversation_has_both() -> None:
    texts = {n: f"Es ist {n} Uhr.\n{TEXT}".replace("\n", "\r\n" if n % 2 else "\n") for n in range(4)}
    assert off_form(texts, dict.fromkeys(texts, 0)) == {n: plain(texts[n]) for n in (1, 3)}
    assert off_form(texts, {n: n for n in texts}) == {}


def test_lists_that_json_schema_calls_sets_are_sorted_and_others_are_not() -> None:
    tool = {"required": ["b", "a"], "prefixItems": [{"type": ["string", "null"]}, {"default": ["q", "p"]}]}
    assert canonical_tool(tool) == {
        "prefixItems": [{"type": ["null", "string"]}, {"default": ["q", "p"]}],
        "required": ["a", "b"],
    }
    assert list(canonical_tool(tool)) == ["prefixItems", "required"]


@given(st.text())
def test_plain_changes_only_the_form_and_only_once(text: str) -> None:
    assert plain(plain(text)) == plain(text)
    assert canonical(plain(text)) == canonical(text) or text.strip()[:1] in "{["
