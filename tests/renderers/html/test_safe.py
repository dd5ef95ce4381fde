"""Text of a log inside a page."""

import json
import re
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.renderers.html.safe import plain, script_json, visible

texts = st.text(st.characters(exclude_categories=()))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the table of all characters is made first
@given(values)
def test_embedded_json_is_the_same_value_and_cannot_leave_its_script(value: object) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


@given(texts)
def test_what_is_visible_stays_and_nothing_invisible_does(text: str) -> None:
    shown = visible(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069\ufeff]", shown)
    shown.encode()  # a file can hold it
    ordinary = "".join(re.findall("[ -~\n\t]", text.replace("\r\n", "\n")))
    assert "".join(re.findall("[ -~\n\t]", re.sub("⟦U\\+[0-9A-F]{4,}⟧", "", shown))) == ordinary


def test_the_invisible_is_named() -> None:
    assert visible("a\x00b\x1b[1m\x7f\x85\r\n\tc\r") == "a␀b␛[1m␡\ufffd\n\tc␍"
    assert visible("file\u202egnp.exe\ud800") == "file⟦U+202E⟧gnp.exe\ufffd"


def test_every_string_of_a_dataclass_is_made_visible() -> None:
    @dataclass(frozen=True)
    class Inner:
        text: str

    @dataclass(frozen=True)
    class Outer:
        rows: tuple[Inner, ...]
        number: float
        nothing: None = None

    assert plain(Outer((Inner("\x00"), Inner("b")), 0.5)) == {
        "rows": [{"text": "␀"}, {"text": "b"}],
        "number": 0.5,
        "nothing": None,
    }
