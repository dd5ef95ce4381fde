"""Sizes read as they are written, whatever the unit."""

from hypothesis import given
from hypothesis import strategies as st

from kvtool.sizes import UNITS, parse_size


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]), st.booleans())
def test_a_whole_number_of_any_unit(number: int, unit: str, space: str, lower: bool) -> None:
    factor = {"K": 1, "M": 2, "G": 3, "T": 4}.get(unit[0], 0)
    written = f"{number}{space}{unit.lower() if lower else unit}"
    assert parse_size(written) == number * (1024 if "i" in unit else 1000) ** factor


def test_fractions_plain_numbers_and_what_is_none() -> None:
    assert [parse_size(text) for text in ("1.5GiB", ".5 kb", "7", "-3MB")] == [3 << 29, 500, 7, -3_000_000]
    assert [parse_size(text) for text in ("8XB", "8iB", "GiB", "2 G", "1 2 MB", "infinity", "")] == [None] * 7
