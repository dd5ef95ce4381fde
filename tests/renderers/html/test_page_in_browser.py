"""The page as people use it, in Chromium."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtool.page import Page, Storage, StoredBlock
from kvtool.renderers.html import write_page
from kvtool.report import Report
from tests.browser import Visit
from tests.renderers.html.conftest import Made

Open = Callable[..., Visit]


def opened(visit: Open, made: Made, **options: Any) -> Visit:
    """The page, drawn to its end, without a complaint and without a request."""
    seen = visit(made.page, **options)
    seen.page.wait_for_selector("html[data-ready]")
    assert seen.complaints == [] and seen.requests == []
    return seen


def test_the_numbers_on_the_page_are_those_of_the_json(visit: Open, airline: Made) -> None:
    page = opened(visit, airline).page
    rate, figures = airline.document["hit_rate"], page.locator(".figures .big").all_inner_texts()
    lost = round((rate["normalized_tokens"] - rate["tokens"]) * airline.document["tokens"]["prompt"])
    assert figures[:3] == [f"{rate['tokens']:.1%}", f"{rate['normalized_tokens']:.1%}", f"{lost:,}"]
    assert figures[3] == f"{lost / 10_000:.0f} s"
    page.fill("#speed", "500")
    assert page.inner_text("#seconds") == f"{lost / 500:.0f} s"
    page.locator("#block-size .data summary").click()
    cells = page.locator("#block-size tbody tr").all_inner_texts()
    assert [re.split(r"\s+", cell.replace(" (this report)", "")) for cell in cells] == [
        [str(row["block_size"]), f"{row['tokens']:.1%}", f"{row['distinct_blocks']:,}"]
        for row in airline.document["block_sizes"]
    ]


def test_a_finding_opens_and_shows_its_slot_and_its_fix(visit: Open, airline: Made) -> None:
    page = opened(visit, airline).page
    first, second = page.locator("details.finding").all()
    assert first.locator("mark.slot").inner_text() == "0000-00-00 00:00:00 XXX"
    assert "The current time is" in first.locator("pre.prompt").inner_text()
    removed, added = first.locator(".diff del").first, first.locator(".diff ins").first
    assert "The current time is 0000-00-00" in removed.inner_text()
    assert "(see the end of the conversation)" in added.inner_text()
    assert not second.locator(".inside").is_visible()
    second.locator("summary").click()
    assert second.locator(".inside").is_visible()
    finding = airline.document["findings"][1]
    facts = second.locator(".facts").inner_text()
    assert f"{finding['hit_rate_if_fixed']:.1%}" in facts and str(finding["distinct_values"]) in facts
    assert "get_user_details" in second.locator("mark.slot").inner_text()


def test_the_tree_zooms_by_mouse_and_by_keyboard(visit: Open, airline: Made) -> None:
    page = opened(visit, airline).page
    cells = page.locator("#icicle [role=treeitem]")
    whole = cells.first.bounding_box()
    block = page.locator("#icicle [role=treeitem][aria-level='2']").first
    narrow, name = block.bounding_box(), block.get_attribute("aria-label")
    assert whole and narrow and narrow["width"] < 0.9 * whole["width"]
    block.hover()
    assert "requests" in page.inner_text("#reading") and "Airline Agent Policy" in page.inner_text("#reading")
    block.click()
    wide = page.locator("#icicle .current").bounding_box()
    assert wide and wide["width"] == pytest.approx(whole["width"], abs=2)
    assert page.locator("#icicle .current").get_attribute("aria-label") == name
    assert page.locator("#crumbs button").count() == 2
    page.keyboard.press("Escape")
    assert page.locator("#icicle .current").get_attribute("aria-level") == "1"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == page.locator("#icicle [role=treeitem][aria-level='2']").nth(1).get_attribute(
        "aria-label"
    )
    page.keyboard.press("Enter")
    assert page.locator("#crumbs button").count() == 2
    page.locator("#crumbs button").first.click()
    assert page.locator("#crumbs button").count() == 1


def test_the_weights_of_the_tree_are_the_logs_full_blocks(visit: Open, airline: Made) -> None:
    page = opened(visit, airline).page
    data = json.loads(page.locator("#data").inner_text() or page.inner_html("#data"))
    top = sum(branch["weight"] for branch in data["trie"] if branch["parent"] < 0)
    prompt = airline.document["tokens"]["prompt"]
    assert prompt - 77 * 32 < top <= prompt and top % 32 == 0


def test_the_theme_follows_the_system_and_the_switch(visit: Open, airline: Made) -> None:
    def background(seen: Visit) -> str:
        return str(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = opened(visit, airline), opened(visit, airline, color_scheme="dark")
    assert background(light) != background(dark)
    dark.page.locator("label", has_text="Light").click()
    assert background(dark) == background(light)
    light.page.locator("input[value=auto]").focus()
    light.page.keyboard.press("ArrowLeft")  # from the first of three to the last
    assert light.page.locator("input[value=dark]").is_checked()
    assert background(light) == background(opened(visit, airline, color_scheme="dark"))
    assert light.complaints == [] and dark.complaints == []


def test_a_model_moves_the_memory_marks(visit: Open, airline: Made) -> None:
    page = opened(visit, airline).page
    assert page.inner_text("#block-bytes") == "in 16 bits a block takes 720 KiB, a GiB holds 1,456 blocks"
    page.select_option("#model", label="Llama 3.1 8B")
    assert page.inner_text("#block-bytes") == "in 16 bits a block takes 4.0 MiB, a GiB holds 256 blocks"
    marks = page.locator("[data-chart=capacity] text", has_text=re.compile("GiB|MiB")).all_text_contents()
    assert "1.0 GiB" in marks


def test_a_command_can_be_copied(visit: Open, airline: Made) -> None:
    page = opened(visit, airline, permissions=["clipboard-read", "clipboard-write"]).page
    page.locator("button.copy").first.click()
    page.locator("button.copy", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".command code").first.inner_text()
    assert copied.startswith("kvtool normalize ") and copied.endswith("--rules-out normalizer.json")


def test_paper_shows_every_finding_in_light(visit: Open, airline: Made) -> None:
    page = opened(visit, airline, color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(inside.is_visible() for inside in page.locator("details.finding .inside").all())
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.locator("details.finding .inside").nth(1).is_visible()


@pytest.mark.parametrize(
    "options",
    [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}],
    ids=["light", "dark", "narrow"],
)
def test_nothing_stands_in_the_way_of_assistive_technology(
    visit: Open, airline: Made, options: dict[str, Any]
) -> None:
    seen = opened(visit, airline, **options)
    seen.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert seen.serious_violations() == []
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_text_is_shown_and_does_nothing(visit: Open, hostile: Made) -> None:
    seen = opened(visit, hostile)
    page = seen.page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    for cell in page.locator("#icicle [role=treeitem]").all()[:5]:
        cell.hover()
    assert "</script>" in page.inner_text("body")
    assert page.evaluate("window.hacked") is None
    assert seen.complaints == [] and seen.requests == []


def test_a_plan_shows_what_is_protected_and_what_is_unknown(visit: Open, tmp_path: Path) -> None:
    cells = [
        StoredBlock(2, 0, 9, 4000, 16.0, 0.0, True, "half"),
        StoredBlock(3, 2, 5, 2400, 4.5, 0.002, False, "int4"),
        StoredBlock(1, 5, 2, 900, 8.3, None, False, "int8"),
    ]
    page = Page("Plan", "of a test", storage=Storage(cells, [(0, 0), (4000, 90), (7300, 160)], 8192))
    path = tmp_path / "plan.html"
    write_page(Report({}, page=page), path)
    seen = visit(path)
    seen.page.wait_for_selector("html[data-ready]")
    strip = seen.page.locator("[data-chart=strip]")
    assert strip.locator("text", has_text="protected").count() == 1
    colours = [rect.get_attribute("fill") for rect in strip.locator("rect").all()]
    assert colours.count("var(--new)") == 1  # the one KL that nobody measured
    assert len([one for one in colours if one and "--served" in one]) == 3
    assert "color-mix(in oklab, var(--lost-fill) 100%, var(--wash))" in colours
    assert "budget" in seen.page.locator("[data-chart=value]").inner_text()
    seen.page.locator("#strip .data summary").click()
    assert "not measured" in seen.page.inner_text("#strip tbody") and "2.00e-03" in seen.page.inner_text(
        "#strip"
    )
    assert seen.complaints == [] and seen.requests == [] and seen.serious_violations() == []
