"""Bytes as people write them: `2GiB`, `500MB`, `1048576`."""

import re

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

KNOWN = f"units are {', '.join(UNITS)}"
"""For an error's line."""

_FACTORS = {"": 1, **{unit.upper(): factor for unit, factor in UNITS.items()}}


def parse_size(text: str) -> int | None:
    """Bytes, in whatever case the unit is; without one they are bytes. None for what is no size."""
    found = re.fullmatch(r"(.*?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    try:
        return int(float(found[1]) * _FACTORS[found[2].upper()]) if found else None
    except (ValueError, KeyError, OverflowError):
        return None
