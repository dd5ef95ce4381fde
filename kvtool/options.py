"""Option types and groups of options that several commands share."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from kvtool.files import check_folder
from kvtool.logs.formats import FORMATS
from kvtool.sizes import KNOWN, parse_size

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


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


class Positive(click.FloatRange):
    """A number above 0; neither infinity nor nan, which no comparison of a range keeps out."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


class Price(click.ParamType):  # type: ignore[type-arg]
    """`3,0.3`: USD per million prompt tokens, uncached and cached."""

    name = "in,cached"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        """(uncached, cached); cached is not dearer."""
        if isinstance(value, tuple):
            return value
        try:
            uncached, cached = map(float, value.split(","))
        except ValueError:
            uncached, cached = 0.0, -1.0
        if not 0 <= cached <= uncached < float("inf"):
            self.fail(f"{value!r} is not a price such as 3,0.3 (uncached, cached)", param, ctx)
        return uncached, cached


price_option = click.option(
    "--price",
    type=Price(),
    metavar="IN,CACHED",
    help="USD per million prompt tokens, uncached and cached: what each finding costs.",
)
"""What tokens cost: `price`."""

flops_option = click.option(
    "--flops",
    type=click.FloatRange(min=1),
    metavar="RATE",
    help="FLOP/s that a GPU reaches in prefill (400e12), for --model's GPU seconds.",
)
"""How fast a machine computes: `flops`."""


def as_dict(ctx: click.Context, param: click.Parameter, value: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Callback of a repeatable Assignment."""
    return dict(value)


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes: `2GiB`, `500MB`, `1048576`; not fewer than `least`."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        size = parse_size(value)
        if size is None or size < self.least:
            above = f" of at least {self.least}" if self.least else ""
            self.fail(f"{value!r} is not a size{above} such as 2GiB, 500MB or 1048576 ({KNOWN})", param, ctx)
        return size


class NamedSizes(click.ParamType):  # type: ignore[type-arg]
    """`host=1GiB,disk=8GiB`, names out of `names` if given; a size by itself is that of `alone`."""

    name = "name=size"

    def __init__(self, names: Sequence[str] = (), alone: str | None = None, least: int = 0) -> None:
        self.names, self.alone, self.size = names, alone, Size(least)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, int], ...]:
        """(name, bytes) pairs, each name once."""
        if isinstance(value, tuple):
            return value
        found: dict[str, int] = {}
        for piece in value.split(","):
            name, equals, size = piece.strip().rpartition("=")
            if not equals and self.alone is not None:
                name = self.alone
            elif not equals or (self.names and name not in self.names):
                known = " or ".join(f"{each}=SIZE" for each in self.names) or "NAME=SIZE"
                self.fail(f"{piece.strip()!r} is not {known}", param, ctx)
            if name in found:
                self.fail(f"{piece.strip()!r}: twice", param, ctx)
            found[name] = self.size.convert(size, param, ctx)
        return tuple(found.items())


def together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """One decorator that adds `options` in the order given."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


format_options = together(
    click.option(
        "--format", metavar="NAME", help=f"Log format; sniffed by default ({', '.join(FORMATS.names())})."
    ),
    click.option(
        "--map",
        "mapping",
        type=Assignment(),
        multiple=True,
        callback=as_dict,
        help="Where an unknown format keeps a field.",
    ),
)
"""How a log is read: `format` and `mapping`."""

strict_option = click.option(
    "--strict", is_flag=True, help="Stop at the first bad row instead of counting it."
)

prompt_options = together(
    click.option("--tokenizer", help="embedded, bytes, a folder, a tokenizer.json or a hub id."),
    click.option("--chat-template", default="auto", show_default=True, help="auto, chatml-tools or a file."),
)
"""How requests become tokens: `tokenizer` and `chat_template`."""

request_options = together(
    click.option("--where", metavar="SQL", help="Keep requests for which this DuckDB expression is true."),
    click.option(
        "--session-gap",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="A longer pause ends a session.",
    ),
    click.option("--share-tenants", is_flag=True, help="Let requests of different tenants share blocks."),
)
"""Which requests count and which may share: `where`, `session_gap`, `share_tenants`."""


def in_a_folder(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    """A file that can be written at the end: asked before a long run, not after it."""
    if value is not None:
        check_folder(value)
    return value


def kept_secret(_: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """A file with a key; a warning where others than its owner may read or change it."""
    if value is not None and value.stat().st_mode & 0o077:
        click.echo(
            f"kvtool: warning: {option.opts[0]} {value}: others can read or change it (chmod 600)", err=True
        )
    return value


report_option = click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=in_a_folder,
    metavar="FILE.html",
    help="Also write a page for people: one file that needs no network.",
)
"""A page in one file: `report`."""


def given_options(config: Any) -> list[tuple[str, str]]:
    """(--name, value) of the options with which a command read its logs, those left at their default not;
    a flag has the value "". config: a command's own, which may lack some of them."""
    pairs = [("--map", f"{field}={path}") for field, path in config.mapping.items()]
    for name in ("format", "tokenizer", "chat_template", "where", "session_gap", "share_tenants"):
        value = getattr(config, name, None)
        if value not in (None, False, getattr(type(config), name, None)):
            pairs.append((f"--{name.replace('_', '-')}", "" if value is True else str(value)))
    return pairs


def output_format(*names: str) -> Callable[[Decorated], Decorated]:
    """`--output-format`, one of `names`; the first is the default."""
    return click.option("--output-format", type=click.Choice(names), default=names[0], show_default=True)
