"""The page as a file: self-contained, locked down, and with nothing of the log in it that is not masked."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvtool.errors import KvtoolError
from kvtool.renderers.html import render, vendored, write_page
from kvtool.renderers.html.document import page_html
from kvtool.renderers.html.vendored import LIBRARIES
from kvtool.report import Column, Report, Table
from tests.renderers.html.conftest import HOSTILE, Made

LIMIT = 3_000_000
"""Bytes of a page at most."""


class Reader(HTMLParser):
    """Tags with their attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "text": []}
        self._inside = "text"
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.raw:
            self._inside = tag
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = "text"

    def handle_data(self, data: str) -> None:
        if self._inside == "text":
            self.raw["text"].append(data)
        else:
            self.raw[self._inside][-1] += data


def read(page: Path) -> Reader:
    return Reader(page.read_text(encoding="utf-8"))


def test_one_file_that_names_no_other(airline: Made) -> None:
    page = read(airline.page)
    assert airline.page.stat().st_size < LIMIT
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes and "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import", page.raw["style"][0])


def test_only_our_script_and_style_may_run_and_nothing_may_be_fetched(airline: Made) -> None:
    page = read(airline.page)
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    _, script = page.raw["script"]
    assert rules["script-src"] == hashed(script)
    assert rules["style-src"].split(" ")[0] == hashed(page.raw["style"][0])
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "connect-src" not in rules  # default-src holds


def hashed(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def test_libraries_are_those_that_were_vendored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in LIBRARIES:
        source = library.source()
        assert f"v{library.version}" in source[:80]
        assert "Permission to use, copy, modify" in (vendored.FOLDER / library.licence_file).read_text()
        (tmp_path / library.file).write_text(source + " ")
    monkeypatch.setattr(vendored, "FOLDER", tmp_path)
    with pytest.raises(KvtoolError, match="damaged"):
        LIBRARIES[0].source()


def test_figures_are_those_of_the_document(airline: Made) -> None:
    words = " ".join(" ".join(read(airline.page).raw["text"]).split())
    rate = airline.document["hit_rate"]
    assert f"{rate['tokens']:.1%}" in words and f"{rate['normalized_tokens']:.1%}" in words
    lost = round((rate["normalized_tokens"] - rate["tokens"]) * airline.document["tokens"]["prompt"])
    assert f"Tokens lost {lost:,}" in words
    for finding in airline.document["findings"]:
        assert f"{finding['lost_tokens']:,} tokens lost" in words
    for row in airline.document["block_sizes"]:
        assert f"{row['distinct_blocks']:,}" in words


def test_values_are_masked_unless_they_are_asked_for(hostile: Made) -> None:
    """The clock, what users said and session names: in the log, and in the page only with --show-values."""
    text = hostile.page.read_text(encoding="utf-8")
    masked = "Values of the log are masked" in text
    examples = [example for finding in hostile.document["findings"] for example in finding["examples"]]
    assert any("2026-01-05 10:" in example for example in examples)
    for private in ("2026-01-05 10:", "secret-"):
        assert (private in text) != masked
    assert "You help." in text  # what all prompts share is shown


def test_text_of_a_log_stays_text(hostile: Made) -> None:
    text = hostile.page.read_text(encoding="utf-8")
    page = Reader(text)
    assert len(page.raw["script"]) == 2 and len(page.raw["style"]) == 1
    assert json.loads(page.raw["script"][0])["trie"]
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object")]
    assert not [
        attributes for _, attributes in page.tags if "onmouseover" in attributes or "onfocus" in attributes
    ]
    assert not re.search("[\x00\x07\x1b\u202e\u2028]", text)
    assert HOSTILE.split()[0] not in text.replace("</script>\n<script>", "", 1)


def test_a_report_without_a_page_shows_its_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = Table("A <b>", [Column("name"), Column("share", "rate")], [["<i>x</i>", 0.125], ["y", None]])
    report = Report({}, ["one <line>"], [table], notes=["note & note"])
    render(report)
    written = capsys.readouterr().out
    assert written == page_html(report)
    words = " ".join(Reader(written).raw["text"])
    for said in ("one <line>", "A <b>", "<i>x</i>", "12.5%", "note & note"):
        assert said in words
    write_page(report, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == written
