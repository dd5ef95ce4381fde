"""terminal: what a person sees. Headline first, then findings by price, tables, notes last."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from kvtool.report import Column, Finding, Report, Table, plural

DEAREST = 5
"""Findings shown where details are not asked for."""

COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def render(report: Report) -> None:
    """Draw on stdout; colour only where the terminal has it, width as it is (80 in a pipe)."""
    console = Console(highlight=False)
    for line in report.headline:
        console.print(escape(line))
    shown = report.findings if report.all_details else report.findings[:DEAREST]
    for finding in shown:
        _finding(console, finding)
    for table in report.tables:
        _table(console, table)
    if report.all_details:
        for table in report.details:
            _table(console, table)
    else:
        _say_more(console, report)
    for note in report.notes:
        console.print(f"[dim]note:[/] {escape(note)}")
    for line in report.closing:
        console.print(escape(line))


def _say_more(console: Console, report: Report) -> None:
    """What `--details` would add."""
    more = [table.title for table in report.details]
    if (hidden := len(report.findings) - DEAREST) > 0:
        more.insert(0, plural(hidden, "cheaper finding"))
    if more:
        console.print()
        console.print(f"[dim]--details shows[/] {escape(', '.join(more))}")


def _table(console: Console, table: Table) -> None:
    drawn = RichTable(
        title=table.title or None,
        title_justify="left",
        show_header=any(column.title for column in table.columns),
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in table.columns:
        drawn.add_column(column.title, justify="left" if column.unit == "text" else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(escape(show(cell, column)) for cell, column in zip(row, table.columns, strict=True)))
    console.print()
    console.print(drawn)


def _finding(console: Console, finding: Finding) -> None:
    place = finding.location
    console.print()
    console.print(f"[{COLOURS[finding.severity]}]{finding.code} {finding.name}[/]  {escape(finding.message)}")
    where = f"{place.file}:{place.row} {place.path} [{place.start}:{place.end}]"
    console.print(f"  at    {escape(where)}", soft_wrap=True)  # in one piece: it is copied and clicked
    console.print(f"  slot  {escape(finding.slot)}")
    console.print(f"  cost  {cost(finding)}; hit rate {finding.hit_rate_if_fixed:.1%} if fixed")
    console.print(f"  fix   {finding.fix.action}{'' if finding.fix.safe else ' (unsafe)'}")


def cost(finding: Finding) -> str:
    """Lost tokens, and dollars and seconds where they have a price."""
    said = [f"{finding.lost_tokens:,} lost tokens"]
    if finding.lost_usd is not None:
        said.append(f"${finding.lost_usd:,.4g}")
    if finding.lost_gpu_seconds is not None:
        said.append(f"{finding.lost_gpu_seconds:,.4g} GPU s")
    return ", ".join(said)


def show(value: str | int | float | None, column: Column) -> str:
    """One cell as text, by its column's unit."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    match column.unit:
        case "rate":
            return f"{value:.1%}"
        case "bytes":
            return show_bytes(value)
        case "seconds":
            return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"
        case "ratio":
            return f"{value:.1f}x"
        case _:
            return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def show_bytes(value: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
