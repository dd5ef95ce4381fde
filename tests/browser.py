"""Debian's Chromium for tests: one browser a file, a fresh profile a visit, and all that it complained of.

Where Chromium is missing these tests are skipped, unless CI is set: then they fail.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Visit:
    """An open page. complaints: errors and warnings of its console and its scripts; requests: what it asked
    for beyond files and data of its own address."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def serious_violations(self) -> list[str]:
        """What axe-core finds to be serious or critical, as `rule: place`."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']}: {node['target'][0]}"
            for rule in found
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, headless. Closed with its file: Playwright's event loop runs in this thread meanwhile, and
    tests that start one of their own come after it."""
    path = shutil.which(CHROMIUM)
    if path is None:
        reason = "needs Chromium: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Callable[..., Visit]]:
    """Opens a file or an address in a profile of its own: visit(where, color_scheme="dark", ...)."""
    contexts = []

    def open_page(where: Path | str, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        seen = Visit(page)
        own = where.resolve().as_uri() if isinstance(where, Path) else where
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                seen.complaints.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on(
            "request",
            lambda request: seen.requests.append(request.url) if not request.url.startswith(own) else None,
        )
        page.goto(own)
        return seen

    yield open_page
    for context in contexts:
        context.close()
