"""Make the README's pictures of the report page from samples/: `python docs/make_screenshots.py`.

Needs Chromium and the development dependencies. Pictures go to docs/images/.
"""

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from click.testing import CliRunner
from playwright.sync_api import Page, sync_playwright

from kvtool.cli import main

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
SAMPLE = "samples/airline-chat.jsonl"
LIMIT = 400_000
"""Bytes of a picture at most."""
WIDTH, HEIGHT, SCALE = 1200, 860, 1.5


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of the page's top, or of one of its sections."""

    name: str
    theme: Literal["light", "dark"]
    section: str | None = None
    click: str | None = None


SHOTS = (
    Shot("report-light", "light"),
    Shot("report-dark", "dark"),
    Shot("report-tree", "light", "#tree", "#icicle [aria-level='2']"),
    Shot("report-capacity", "dark", "#capacity"),
)


def make(folder: Path) -> None:
    """Write every picture to `folder`; exit with a message where one is too large."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    os.chdir(ROOT)  # the page names the log as the reader would
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        page_file = Path(temporary) / "report.html"
        result = CliRunner().invoke(main, ["analyze", SAMPLE, "--report", str(page_file)])
        if result.exit_code:
            sys.exit(result.output)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        folder.mkdir(parents=True, exist_ok=True)
        for shot in SHOTS:
            size = {"width": WIDTH, "height": HEIGHT}
            page = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme=shot.theme)
            page.goto(page_file.as_uri())
            page.wait_for_selector("html[data-ready]")
            take(page, shot, folder / f"{shot.name}.png")
            page.close()
        browser.close()


def take(page: Page, shot: Shot, path: Path) -> None:
    """One picture."""
    if shot.click is not None:
        page.locator(shot.click).first.click()
        page.locator("#icicle .cell").nth(3).hover()
    if shot.section is None:
        page.screenshot(path=path)
    else:
        page.locator(shot.section).screenshot(path=path)
    if path.stat().st_size > LIMIT:
        sys.exit(f"{path}: {path.stat().st_size:,} bytes, more than {LIMIT:,}")


if __name__ == "__main__":
    make(IMAGES)
