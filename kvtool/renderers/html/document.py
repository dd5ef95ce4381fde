"""A report put together as one HTML document: template, style, libraries, scripts, data, and a policy that
lets nothing else run and nothing be fetched."""

from base64 import b64encode
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kvtool.page import Page
from kvtool.renderers.html.safe import plain, script_json, visible
from kvtool.renderers.html.vendored import LIBRARIES
from kvtool.renderers.terminal import show
from kvtool.report import Report

FOLDER = Path(__file__).parent
SCRIPTS = ("page.js", "charts.js", "capacity.js", "icicle.js", "storage.js", "start.js")
PLOT_STYLE = """:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
"""What Plot writes into each chart of class `plot`: allowed by its hash, as our own style is."""
DRAWN = ("trie", "capacity", "block_sizes", "block_size", "over_time", "sessions", "storage")
"""Fields of a Page that scripts read; the template writes the others itself."""


def page_html(report: Report) -> str:
    """The whole document. A report without a page shows what the terminal shows."""
    page = report.page or Page("kvtool report", "", with_tables=True)
    shown = plain(asdict(page))
    style, script = _static("page.css"), _script()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=shown,
            findings=[plain(finding.to_json()) for finding in report.findings],
            exhibits={exhibit["index"]: exhibit for exhibit in shown["exhibits"]},
            headline=[visible(line) for line in report.headline],
            notes=[visible(note) for note in report.notes],
            tables=[_table(table) for table in report.tables] if page.with_tables else [],
            sections=_sections(shown, bool(report.findings)),
            policy=_policy(script, style),
            style=style,
            script=script,
            data=script_json({name: shown[name] for name in DRAWN}),
        )
    )


def _sections(page: dict[str, Any], findings: bool) -> list[tuple[str, str]]:
    """(id, name) of the sections that this page has, for its navigation."""
    present = [
        ("findings", "Findings", findings),
        ("next", "What to do next", page["steps"]),
        ("strip", "Stored blocks", page["storage"] and page["storage"]["cells"]),
        ("tree", "Prompt tree", page["trie"]),
        ("capacity", "Cache size", page["capacity"]),
        ("block-size", "Block size", page["block_sizes"]),
        ("routing", "Routing", page["routing"]),
        ("over-time", "Over time", page["over_time"] and len(page["over_time"]["intervals"]) > 1),
        ("sessions", "Sessions", page["sessions"]),
    ]
    return [(id, name) for id, name, there in present if there]


def _policy(script: str, style: str) -> str:
    """Content-Security-Policy: our script and style by their hashes; no connection, image, frame or form."""
    styles = " ".join(_hash(text) for text in (style, PLOT_STYLE))
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {styles}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _script() -> str:
    """Libraries and our own scripts as one, between line ends as they stand in the document."""
    own = "\n".join(_static(name) for name in SCRIPTS)
    own = f'(() => {{\n"use strict";\n{own}}})();\n'
    return "\n".join([*(library.source() for library in LIBRARIES), own])


@cache
def _static(name: str) -> str:
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["rate"] = lambda value: "–" if value is None else f"{value:.1%}"
    environment.filters["size"] = size
    environment.filters["moment"] = moment
    return environment


def moment(value: int) -> str:
    """µs UTC -> 2025-03-01 12:30:05."""
    return f"{datetime.fromtimestamp(value // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def size(value: float) -> str:
    """Bytes for people: 1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def _table(table: Any) -> dict[str, Any]:
    """A table of the report as text cells."""
    return {
        "title": visible(table.title),
        "columns": [{"title": visible(column.title), "unit": column.unit} for column in table.columns],
        "rows": [
            [visible(show(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ],
    }
