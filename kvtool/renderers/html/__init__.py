"""html: a report as one page for people: one file, no network, light and dark, with pictures and tables."""

import sys
from pathlib import Path

from kvtool.files import write_whole
from kvtool.renderers.html.document import page_html
from kvtool.report import Report


def render(report: Report) -> None:
    """Write the page to stdout."""
    sys.stdout.write(page_html(report))


def write_page(report: Report, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    write_whole(path, page_html(report))
