"""Option types that several commands share."""

from collections.abc import Sequence
from typing import Any

import click


class Rate(click.ParamType):  # type: ignore[type-arg]
    """A share of one: `0.4` or `40%`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a float in 0..1."""
        if isinstance(value, float):
            return value
        try:
            share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share such as 0.4 or 40%", param, ctx)
        return share


class Assignment(click.ParamType):  # type: ignore[type-arg]
    """`field=path`."""

    name = "field=path"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """(field, path)."""
        if isinstance(value, tuple):
            return value
        field, equals, path = value.partition("=")
        if not (field and equals and path):
            self.fail(f"{value!r} is not FIELD=PATH", param, ctx)
        return field, path


def as_dict(ctx: click.Context, param: click.Parameter, value: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Callback of a repeatable Assignment."""
    return dict(value)


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes: `2GiB`, `500MB`, `1048576`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        number = value.strip().rstrip("BIKMGTbikmgt ")
        unit = value.strip()[len(number) :].strip().upper()
        try:
            return int(float(number) * UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is not a size such as 2GiB, 500MB or 1048576", param, ctx)
